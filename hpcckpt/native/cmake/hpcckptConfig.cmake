# find_package(hpcckpt CONFIG) for storage plugins. Nothing is linked: a plugin needs headers only.
#
#   hpcckpt::plugin            the headers: <hpcckpt/plugin.h> for C, <hpcckpt/backend.hpp> for C++
#   hpcckpt::tmci              those of TMCI's shape, <tmci/backend.hpp>; see hpcckptTMCI.cmake
#   hpcckpt_add_plugin(NAME [TMCI] SOURCE...)   a library libNAME.so in the build folder
#   hpcckpt_INCLUDE_DIR, hpcckpt_ABI_VERSION
#
# Where this file is: python -m hpcckpt --cmake-dir
get_filename_component(hpcckpt_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../include" ABSOLUTE)

file(STRINGS "${hpcckpt_INCLUDE_DIR}/hpcckpt/plugin.h" _hpcckpt_lines REGEX "^#define HPCCKPT_ABI_M(AJ|IN)OR [0-9]+$")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" hpcckpt_ABI_VERSION "${_hpcckpt_lines}")
unset(_hpcckpt_lines)

if(NOT TARGET hpcckpt::plugin)
  add_library(hpcckpt::plugin INTERFACE IMPORTED)
  set_target_properties(hpcckpt::plugin PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${hpcckpt_INCLUDE_DIR}")
  get_property(_hpcckpt_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if("CXX" IN_LIST _hpcckpt_languages)
    set_property(TARGET hpcckpt::plugin APPEND PROPERTY INTERFACE_COMPILE_FEATURES cxx_std_17)
  endif()
  if("C" IN_LIST _hpcckpt_languages)
    set_property(TARGET hpcckpt::plugin APPEND PROPERTY INTERFACE_COMPILE_FEATURES c_std_11)
  endif()
  unset(_hpcckpt_languages)
endif()

include("${CMAKE_CURRENT_LIST_DIR}/hpcckptTMCI.cmake")

function(hpcckpt_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 plugin "TMCI" "" "")
  if(NOT name MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
    message(FATAL_ERROR "hpcckpt_add_plugin: '${name}' is not a C identifier")
  endif()
  if(plugin_TMCI)
    hpcckpt_find_tmci(REQUIRED)
  endif()
  add_library(${name} MODULE ${plugin_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE hpcckpt::plugin $<$<BOOL:${plugin_TMCI}>:hpcckpt::tmci>)
  set_target_properties(
    ${name} PROPERTIES PREFIX lib SUFFIX .so C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
endfunction()

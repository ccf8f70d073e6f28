# TMCI's C++ interface, <tmci/backend.hpp>, which needs TensorFlow's headers and its library:
#
#   hpcckpt_find_tmci([REQUIRED])   makes hpcckpt::tmci, for the TensorFlow installed beside hpcckpt
#
# Not made before it is asked for, by this function, by find_package(hpcckpt CONFIG COMPONENTS tmci), or by
# hpcckpt_add_plugin(NAME TMCI ...): asking TensorFlow takes seconds.  -Dhpcckpt_PYTHON=... names the Python that has
# hpcckpt and TensorFlow.
function(hpcckpt_find_tmci)
  if(TARGET hpcckpt::tmci)
    return()
  endif()
  set(told "")
  foreach(python "${hpcckpt_PYTHON}" "$ENV{VIRTUAL_ENV}/bin/python" python3 python)
    execute_process(
      COMMAND "${python}" -m hpcckpt.native.tfinfo --json
      RESULT_VARIABLE failed OUTPUT_VARIABLE found ERROR_VARIABLE error)
    if(failed EQUAL 0)
      set(asked "${python}") # the loop's own variable is gone after it
      break()
    endif()
    if(python AND NOT python STREQUAL "/bin/python")
      string(STRIP "${error}" error)
      string(REGEX REPLACE ".*\n" "" error "${error}")
      string(APPEND told "\n  ${python}: ${failed}: ${error}")
    endif()
  endforeach()
  if(NOT failed EQUAL 0)
    if("REQUIRED" IN_LIST ARGN)
      message(FATAL_ERROR "hpcckpt: no Python has hpcckpt and TensorFlow; name one: -Dhpcckpt_PYTHON=PATH${told}")
    endif()
    return()
  endif()
  foreach(key libraries library_dirs include_dirs extra_cxxflags)
    set(${key} "")
    string(JSON n LENGTH "${found}" ${key})
    if(n GREATER 0)
      math(EXPR last "${n} - 1")
      foreach(i RANGE ${last})
        string(JSON value GET "${found}" ${key} ${i})
        list(APPEND ${key} "${value}")
      endforeach()
    endif()
  endforeach()
  string(JSON version GET "${found}" tensorflow)
  message(STATUS "hpcckpt: TensorFlow ${version} (${asked})")
  list(FILTER extra_cxxflags EXCLUDE REGEX "^-?-std=") # the compiler's own default may be newer
  list(TRANSFORM libraries PREPEND "-l")
  set(rpaths "${library_dirs}")
  list(TRANSFORM rpaths PREPEND "LINKER:-rpath,")
  add_library(hpcckpt::tmci INTERFACE IMPORTED GLOBAL)
  set_target_properties(
    hpcckpt::tmci
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${hpcckpt_INCLUDE_DIR};${include_dirs}"
               INTERFACE_COMPILE_OPTIONS "${extra_cxxflags}"
               INTERFACE_COMPILE_FEATURES cxx_std_17
               INTERFACE_LINK_DIRECTORIES "${library_dirs}"
               INTERFACE_LINK_OPTIONS "${rpaths}"
               INTERFACE_LINK_LIBRARIES "${libraries}")
endfunction()

if("tmci" IN_LIST hpcckpt_FIND_COMPONENTS)
  hpcckpt_find_tmci()
  if(TARGET hpcckpt::tmci)
    set(hpcckpt_tmci_FOUND TRUE)
  elseif(hpcckpt_FIND_REQUIRED_tmci)
    set(hpcckpt_FOUND FALSE)
    set(hpcckpt_NOT_FOUND_MESSAGE "no Python has hpcckpt and TensorFlow; name one: -Dhpcckpt_PYTHON=PATH")
  endif()
endif()

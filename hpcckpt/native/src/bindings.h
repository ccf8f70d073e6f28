// What module.cpp puts together; bindings convert and refuse, they never compute.
#pragma once

#include <nanobind/nanobind.h>

namespace hpcckpt {

void bind_child_signal(nanobind::module_& m);
void bind_crc32c(nanobind::module_& m);
void bind_blockio(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_tensor_buffer(nanobind::module_& m);

}  // namespace hpcckpt

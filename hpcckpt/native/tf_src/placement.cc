// Our ops run on the processor, wherever the variables are that they are given: each looks only at those in the host's
// memory.  Without this they would have to run where the variables are.
#include "tensorflow/core/common_runtime/input_colocation_exemption_registry.h"

namespace tensorflow {
namespace {

REGISTER_INPUT_COLOCATION_EXEMPTION("HpcckptHold");
REGISTER_INPUT_COLOCATION_EXEMPTION("HpcckptPluginSave");
REGISTER_INPUT_COLOCATION_EXEMPTION("HpcckptPluginLoad");
REGISTER_INPUT_COLOCATION_EXEMPTION("HpcckptPluginLoadRefs");

}  // namespace
}  // namespace tensorflow

#include "swapped_tensor.h"

#include <utility>

#include "figures.h"

namespace hpcckpt {
namespace lms {

SwappedTensor::SwappedTensor(std::string its_name, const tensorflow::Tensor& its_tensor)
    : name(std::move(its_name)),
      dtype(its_tensor.dtype()),
      shape(its_tensor.shape()),
      nbytes(tensorflow::DataTypeCanUseMemcpy(its_tensor.dtype()) ? its_tensor.tensor_data().size() : 0),
      tensor(its_tensor) {
    ++Figures::one().live_handles;
}

SwappedTensor::~SwappedTensor() {
    if (file != nullptr) file->give(offset, nbytes);
    if (host.data != nullptr) Pool::one().give(host);
    if (place == Place::kHost) HostBudget::one().give(static_cast<std::int64_t>(nbytes));
    --Figures::one().live_handles;
}

}  // namespace lms
}  // namespace hpcckpt

// How long ops take: TensorFlow's own recorder of what its threads do, for a step or a few.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hpcckpt {
namespace lms {

struct OpTime {
    std::int64_t count = 0;
    std::int64_t total_ns = 0;
    std::int64_t first_ns = 0;  // when it began the first time, by the clock of the recorder
};

// False if a profiler is recording already.
bool start_op_times();

// By name. Includes ops outside the graph in question: tf.data and others run at the same time.
std::map<std::string, OpTime> stop_op_times();

}  // namespace lms
}  // namespace hpcckpt

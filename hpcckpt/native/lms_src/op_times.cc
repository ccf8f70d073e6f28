#include "op_times.h"

#include <algorithm>

#if __has_include("xla/tsl/profiler/backends/cpu/traceme_recorder.h")
#include "xla/tsl/profiler/backends/cpu/traceme_recorder.h"
#else
#include "tsl/profiler/backends/cpu/traceme_recorder.h"
#endif

namespace hpcckpt {
namespace lms {
namespace {

constexpr int kOpsThatAreCheapToo = 3;

// "dense/MatMul:MatMul#shape=...#" -> "dense/MatMul"; nothing if it is no op's.
std::string op_name(const std::string& name) {
    const std::string plain = name.substr(0, name.find('#'));
    const std::size_t colon = plain.rfind(':');
    const bool is_op = colon != std::string::npos && colon + 1 < plain.size() && plain.find("::") == std::string::npos;
    return is_op ? plain.substr(0, colon) : "";
}

void add(std::map<std::string, OpTime>* times, const std::string& name, std::int64_t start, std::int64_t end) {
    OpTime& time = (*times)[name];
    time.first_ns = time.count == 0 ? start : std::min(time.first_ns, start);
    time.count += 1;
    time.total_ns += end - start;
}

}  // namespace

bool start_op_times() { return tsl::profiler::TraceMeRecorder::Start(kOpsThatAreCheapToo); }

std::map<std::string, OpTime> stop_op_times() {
    std::map<std::string, OpTime> times;
    for (const auto& thread : tsl::profiler::TraceMeRecorder::Stop()) {
        for (const auto& event : thread.events) {
            const std::string name = event.IsComplete() ? op_name(event.name) : "";
            if (!name.empty()) add(&times, name, event.start_time, event.end_time);
        }
    }
    return times;
}

}  // namespace lms
}  // namespace hpcckpt

#include "graph_pass.h"

#include <exception>
#include <memory>
#include <mutex>
#include <regex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "apply.h"
#include "callback.h"
#include "describe.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"

namespace hpcckpt {
namespace lms {
namespace {

struct Armed {
    Aim aim;
    std::regex match;
};

std::mutex armed_lock;
std::shared_ptr<const Armed> armed;

std::shared_ptr<const Armed> current() {
    const std::lock_guard<std::mutex> guard(armed_lock);
    return armed;
}

absl::Status refused(const std::string& name, const std::string& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("hpcckpt.lms cannot swap in ", name.empty() ? "the graph of this session" : name, ": ", why));
}

class SwapPass : public tensorflow::GraphOptimizationPass {
   public:
    absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
        const auto now = current();
        if (now == nullptr || options.graph == nullptr || *options.graph == nullptr) return absl::OkStatus();
        const bool is_session = !options.is_function_graph;
        const std::string name = options.function_def == nullptr ? "" : options.function_def->signature().name();
        if (is_inside()) return absl::OkStatus();  // what the planner itself runs is left alone
        is_inside() = true;
        absl::Status status;
        try {
            const bool is_meant = is_session ? now->aim.with_sessions : std::regex_search(name, now->match);
            if (is_meant) status = swap(*now, name, is_session, options.graph->get());
        } catch (const std::exception& error) {  // e.g. out of memory: TensorFlow handles no exceptions
            status = refused(name, error.what());
        }
        is_inside() = false;
        return status;
    }

   private:
    static bool& is_inside() {
        thread_local bool inside = false;
        return inside;
    }

    static absl::Status swap(const Armed& now, const std::string& name, bool is_session, tensorflow::Graph* graph) {
        std::string json;
        const absl::Status told = describe(*graph, now.aim.batch_size, &json);
        if (!told.ok()) return refused(name, std::string(told.message()));
        const Reply reply = ask_planner(name, is_session, json);
        if (reply.is_error) return refused(name, reply.text);
        if (reply.text.empty()) return absl::OkStatus();
        const absl::Status done = apply(reply.text, now.aim.with_stalls, graph);
        return done.ok() ? done : refused(name, std::string(done.message()));
    }
};

// 1000: after the passes of XLA, which are numbered up to 60.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1000, SwapPass);

}  // namespace

std::string arm(const Aim& aim) {
    auto made = std::make_shared<Armed>();
    made->aim = aim;
    try {
        made->match = std::regex(aim.match);
    } catch (const std::regex_error& error) {
        return error.what();
    }
    const std::lock_guard<std::mutex> guard(armed_lock);
    armed = std::move(made);
    return "";
}

void disarm() {
    const std::lock_guard<std::mutex> guard(armed_lock);
    armed.reset();
}

}  // namespace lms
}  // namespace hpcckpt

// Another source file of the same library, with its own backend.
#include <hpcckpt/backend.hpp>

namespace {
struct Silent : hpcckpt::Backend {
    explicit Silent(const std::string&) {}
    int Save(const hpcckpt::Context&) override { return 0; }
    int Load(const hpcckpt::Context&) override { return 0; }
};
}  // namespace

HPCCKPT_REGISTER_BACKEND(from_second_file, Silent)

#include "DummyBackend.hpp"

HPCCKPT_REGISTER_BACKEND(dummy, DummyBackend)

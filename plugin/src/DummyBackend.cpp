#include "DummyBackend.hpp"

TMCI_REGISTER_BACKEND(dummy, DummyBackend);

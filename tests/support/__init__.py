"""What tests share. Programs that tests start find it by `tests.support.programs.environment`."""

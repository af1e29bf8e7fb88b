//! The project's tests, one module for each thing that is promised.
mod emulation; // both kernels in the emulator: every shape, several thread orders, bit for bit
mod gates; // forget gates at their limits
mod recurrence; // cases whose results are known exactly or by hand

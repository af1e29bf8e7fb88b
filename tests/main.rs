//! The project's tests, one module for each thing that is promised.
mod emulation; // both kernels in the emulator: every shape, several thread orders, bit for bit
mod errors; // bad arguments on every path
mod gates; // forget gates at their limits
mod indices;
mod layouts; // views at any strides
mod recurrence; // cases whose results are known exactly or by hand
mod sequences; // one long call against several, no tokens, no state
mod threads; // many threads at once // the checks of shapes and strides against 128-bit arithmetic

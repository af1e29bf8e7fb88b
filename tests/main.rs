//! The project's tests, one module for each thing that is promised.
mod cli; // the command line as a user runs it
mod emulation; // both kernels in the emulator: every shape, several thread orders, bit for bit
mod errors; // bad arguments on every path
mod faulty_kernels; // kernels with one fault each, and what the emulator says
mod gates; // forget gates at their limits
mod golden; // results of an independent program
mod gpu; // what only a GPU can show
mod indices;
mod layouts; // views at any strides
mod mutation; // that the checks of this suite go red
mod properties;
mod ptx;
mod recurrence; // cases whose results are known exactly or by hand
mod sequences; // one long call against several, no tokens, no state
mod threads; // many threads at once // the checks of shapes and strides against 128-bit arithmetic // what holds for any inputs // the committed PTX as text

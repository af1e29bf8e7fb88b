//! The project's tests. Case numbers are those of the list of other libraries' bugs that this project must not have.
//! What needs the GPU for itself is in `alone.rs`.
//!
//! | module | what it promises |
//! | --- | --- |
//! | `emulation` | both kernels over every shape: float64's bar, the same bits in every order of threads and from both |
//! | `recurrence` | results that are known exactly or by hand: 3, 7, 8, 27, 49, 50 |
//! | `gates` | forget gates at their limits: 1, 4, 5, 6, 13 |
//! | `sequences` | one long call is several; no tokens; no state: 9, 14, 17 |
//! | `chunked` | the chunked paths: thread orders, segments, neighbours, random gates: 2, 35, 43 |
//! | `decode_kernel` | batches of short sequences, slots, tables, element types: 7, 10, 14, 15, 17, 21, 23, 35, 48, 54 |
//! | `dispatch` | cards, limits and switches through the public interface: 38, 43 |
//! | `layouts` | views at any strides have the dense bits, and nothing outside them is touched: 10 |
//! | `errors`, `indices` | bad arguments on every path; shapes and strides against 128-bit arithmetic: 8, 11(c), 47, 55 |
//! | `packed` | batches, packed and empty sequences, states on the way: 9, 17, 19, 20, 35, 45 |
//! | `pools` | tables of slots, padding, recycled slots, layouts, copies, states of every token: 7, 10, 14, 15, 54 |
//! | `dtypes` | element types, norms, gates of every convention: 13, 21, 22, 23, 27, 48 |
//! | `widened` | the chunked kernels on what they do not read as it is: other types, norm, raw gates, layouts and slots of states: 7, 9, 10, 15, 21, 22, 35 |
//! | `refusals`, `choices` | bad batches, pools and tables; which kernel a call takes and why: 11, 43, 47, 55 |
//! | `properties` | what holds for any inputs |
//! | `threads` | many threads at once: 51 |
//! | `golden` | results of an independent program |
//! | `ptx` | the committed PTX as text: 29, 37, 56 |
//! | `cli` | the command line as a user runs it: 39 |
//! | `cli_paths` | paths by name, and the families of inputs that stress ranges |
//! | `cli_facts` | what a card computes and costs, or that there is none to ask |
//! | `gpu`, `gpu_chunked`, `gpu_batches`, `gpu_packed` | what only a GPU can show: 2, 9, 10, 11, 14, 15, 31, 32, 35, 40, 51 |
//! | `mutation`, `faulty_kernels` | that the checks of this suite, and those of the emulator, go red: 55 |
mod choices;
mod chunked;
mod cli;
mod cli_facts;
mod cli_paths;
mod decode_kernel;
mod dispatch;
mod dtypes;
mod emulation;
mod errors;
mod faulty_kernels;
mod gates;
mod golden;
mod gpu;
mod gpu_batches;
mod gpu_chunked;
mod gpu_packed;
mod indices;
mod layouts;
mod mutation;
mod packed;
mod pools;
mod properties;
mod ptx;
mod recurrence;
mod refusals;
mod sequences;
mod threads;
mod widened;

//! The decode kernel in the emulator, launched as its arguments say: against float64, against the recurrent kernels bit for
//! bit, and over everything that tables on the device can say.
//!
//! | module | what it promises |
//! | --- | --- |
//! | `batch`, `states` | a batch in memory: tensors at strides, the launch, what is expected of it; pools and tables |
//! | `numbers` | heads, element types, strides, normalisation: 8, 10, 21, 23, 48 |
//! | `gates` | raw gates at their limits: 6 |
//! | `sequences` | empty sequences, cuts, checkpoints, neighbours: 9, 17, 35, 54 |
//! | `pools` | orders of the state's axes, slots, padding: 7, 10, 14, 15 |
//! | `copies` | states copied between pools, and made zero |
mod batch;
mod copies;
mod gates;
mod numbers;
mod pools;
mod sequences;
mod states;

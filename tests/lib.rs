//! What the tests share: the paths of this machine, shapes, the checks that decide, strided buffers, the GPU if there is one.

mod batch;
mod batch_on_device;
mod checks;
mod gpu_or_skip;
mod on_device;
mod paths;
mod shapes;
mod strided;

pub use batch::{Batch, BatchPath, Numbers, Outputs, Pool};
pub use batch_on_device::BatchOnDevice;
pub use checks::{Fails, Output, agrees, bars, close, expected_of, same_bits, same_numbers, untouched};
pub use gpu_or_skip::{gpu, gpu_or_skip};
pub use on_device::{OnDevice, engine_context, forced};
pub use paths::{
    ORDERS, Path, every_chunked_path, every_path, every_path_for, holds_on_every_path, holds_within, on_every_path,
    recurrent_kernels_have_the_same_bits, run, run_in_order,
};
pub use shapes::{CHUNK, HEADS, TOKENS, every_heads, heads, tokens_of};
pub use strided::{Buffers, Layout, POISON};

//! The recurrence on device memory that another part of a program owns: `cargo run -p host --example embed_cust`.
//!
//! An engine has its pointers and its stream already; here cust allocates them. Without a GPU it says so and ends well.
use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use host::cuda::{Call, Gates, Gdn, State, View};
use host::{Dtype, HeadMap, Heads, StateLayout, Strides};

const TOKENS: usize = 100;
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 48;
const HEAD_DIM: usize = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A program of this workspace opens libcuda at run time; an engine links it and needs no such line.
    if let Err(error) = libcuda_loader::load() {
        println!("skipped: {error}");
        return Ok(());
    }
    // Once per device: retains the primary context and loads the kernels.
    let gdn = Gdn::new(0)?;

    // The engine's part: its context, stream and tensors.
    let context = Context::new(Device::get_device(0)?)?;
    CurrentContext::set_current(&context)?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let heads = Heads::new(KEY_HEADS, VALUE_HEADS, HeadMap::Grouped)?;
    let row = 2 * KEY_HEADS * HEAD_DIM + VALUE_HEADS * HEAD_DIM;
    let key = (1.0 / HEAD_DIM as f32).sqrt();
    let packed = DeviceBuffer::from_slice(&vec![key; TOKENS * row])?;
    let g = DeviceBuffer::from_slice(&[-0.05f32; TOKENS * VALUE_HEADS])?;
    let beta = DeviceBuffer::from_slice(&[0.5f32; TOKENS * VALUE_HEADS])?;
    let out = DeviceBuffer::from_slice(&vec![0.0f32; TOKENS * VALUE_HEADS * HEAD_DIM])?;
    let state = DeviceBuffer::from_slice(&vec![0.0f32; VALUE_HEADS * HEAD_DIM * HEAD_DIM])?;

    // q, k and v are slices of one packed row per token.
    let packed_row = Strides { token: row, head: HEAD_DIM };
    let column = |first: usize| {
        let bytes = (first * size_of::<f32>()) as u64;
        View::new(packed.as_device_ptr().as_raw() + bytes, Dtype::F32, packed_row)
    };
    let gates = Strides::dense(VALUE_HEADS, 1);
    let call = Call::new(
        heads,
        TOKENS,
        column(0),
        column(KEY_HEADS * HEAD_DIM),
        column(2 * KEY_HEADS * HEAD_DIM),
        Gates::Log {
            g: View::new(g.as_device_ptr().as_raw(), Dtype::F32, gates),
            beta: View::new(beta.as_device_ptr().as_raw(), Dtype::F32, gates),
        },
        View::new(out.as_device_ptr().as_raw(), Dtype::F32, Strides::dense(VALUE_HEADS, HEAD_DIM)),
    )
    .state(State::new(state.as_device_ptr().as_raw(), StateLayout::key_major(&heads), 1));

    // SAFETY: all buffers are device memory of device 0's primary context, as long as their shapes say, and live until the
    // stream is synchronised below; nothing else uses them.
    let launch = unsafe { gdn.prefill(&call, (&stream).into())? };
    stream.synchronize()?;

    let mut result = vec![0.0f32; out.len()];
    out.copy_to(&mut result[..])?;
    println!("{}: {} ({})", gdn.facts().name, launch.kernel.name(), launch.reason);
    println!("last output of head 0, column 0: {}", result[(TOKENS - 1) * VALUE_HEADS * HEAD_DIM]);
    Ok(())
}

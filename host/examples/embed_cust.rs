//! The recurrence on device memory that another part of a program owns: `cargo run -p host --example embed_cust`.
//!
//! Two prompts are prefilled together, then both sequences are decoded token by token, with their states in a pool. An engine
//! has its pointers and its stream already; here cust allocates them. Without a GPU it says so and ends well.
use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use host::cuda::{Call, Gates, Gdn, Indices, StatePool, View};
use host::{Dtype, HeadMap, Heads, IndexDtype, Sequences, StateLayout, Strides};

/// Offsets of a prompt of 200 tokens and one of 100, packed one after the other.
const CU_SEQLENS: [u32; 3] = [0, 200, 300];
const SEQUENCES: usize = 2;
const NEW_TOKENS: usize = 5;
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 48;
const HEAD_DIM: usize = 128;
/// Of a token: q, k and v.
const ROW: usize = 2 * KEY_HEADS * HEAD_DIM + VALUE_HEADS * HEAD_DIM;

/// The tensors of so many tokens, as an engine's layer has them.
struct Layer {
    qkv: DeviceBuffer<f32>,
    g: DeviceBuffer<f32>,
    beta: DeviceBuffer<f32>,
    out: DeviceBuffer<f32>,
}

impl Layer {
    fn new(tokens: usize) -> Result<Self, cust::error::CudaError> {
        let key = (1.0 / HEAD_DIM as f32).sqrt();
        Ok(Self {
            qkv: DeviceBuffer::from_slice(&vec![key; tokens * ROW])?,
            g: DeviceBuffer::from_slice(&vec![-0.05; tokens * VALUE_HEADS])?,
            beta: DeviceBuffer::from_slice(&vec![0.5; tokens * VALUE_HEADS])?,
            out: DeviceBuffer::from_slice(&vec![0.0; tokens * VALUE_HEADS * HEAD_DIM])?,
        })
    }

    /// The call over them. q, k and v are slices of one packed row per token.
    fn call<'a>(&self, heads: Heads, sequences: Sequences<'a>) -> Call<'a> {
        let column = |first: usize| {
            let pointer = self.qkv.as_device_ptr().as_raw() + (first * size_of::<f32>()) as u64;
            View::new(pointer, Dtype::F32, Strides { token: ROW, head: HEAD_DIM }).batch_stride(ROW)
        };
        let scalars = |buffer: &DeviceBuffer<f32>| {
            View::new(buffer.as_device_ptr().as_raw(), Dtype::F32, Strides::dense(VALUE_HEADS, 1))
                .batch_stride(VALUE_HEADS)
        };
        let out = View::new(self.out.as_device_ptr().as_raw(), Dtype::F32, Strides::dense(VALUE_HEADS, HEAD_DIM));
        Call::new(
            heads,
            sequences,
            column(0),
            column(KEY_HEADS * HEAD_DIM),
            column(2 * KEY_HEADS * HEAD_DIM),
            Gates::Log { g: scalars(&self.g), beta: scalars(&self.beta) },
            out.batch_stride(VALUE_HEADS * HEAD_DIM),
        )
    }
}

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
    let prompts = Layer::new(CU_SEQLENS[SEQUENCES] as usize)?;
    let step = Layer::new(SEQUENCES)?;

    // States of one layer, for up to eight sequences. The slots of these two are theirs until they are dropped.
    let pool = StatePool::new(&gdn, &heads, StateLayout::key_major(&heads), 1, 8)?;
    // SAFETY: the stream lives to the end.
    let slots = unsafe { [pool.acquire((&stream).into())?, pool.acquire((&stream).into())?] };
    let numbers = DeviceBuffer::from_slice(&[slots[0].index(), slots[1].index()])?;
    let table = Indices::new(numbers.as_device_ptr().as_raw(), IndexDtype::U32);

    let packed = Sequences::Varlen { cu_seqlens: &CU_SEQLENS };
    let prefill = prompts.call(heads, packed).state(pool.layer(0)).state_indices(table);
    let each_one = Sequences::Uniform { batch: SEQUENCES, tokens: 1 };
    let decode = step.call(heads, each_one).state(pool.layer(0)).state_indices(table);
    // SAFETY: all buffers are device memory of device 0's primary context, as long as their shapes say, and live until the
    // stream is synchronised below; nothing else uses them.
    unsafe {
        let launch = gdn.prefill(&prefill, (&stream).into())?;
        println!("{}: prefill by {} ({})", gdn.facts().name, launch.kernel.name(), launch.reason);
        for _ in 0..NEW_TOKENS {
            let launch = gdn.decode(&decode, (&stream).into())?;
            println!("one token of {SEQUENCES} sequences by {}, launches: {}", launch.kernel.name(), launch.launches);
        }
    }
    stream.synchronize()?;

    let mut result = vec![0.0f32; step.out.len()];
    step.out.copy_to(&mut result[..])?;
    println!("last outputs of head 0, column 0: {} {}", result[0], result[VALUE_HEADS * HEAD_DIM]);
    Ok(())
}

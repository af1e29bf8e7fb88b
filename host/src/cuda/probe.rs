//! What a card's tensor cores compute, how fast they are, and what launches cost: for the command `facts`.
mod driver;
mod launches;

use super::error::{CudaError, DriverError};
use super::{Gdn, Stream};
use crate::error::Result;
use crate::probe::{Chains, Fragments, Load, Rate, Regime};
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
use cust::memory::{CopyDestination, DeviceBuffer, DeviceCopy};
use cust::stream::StreamFlags;
use kernels_gpu::kernels::tensor_probe::{
    Args, C_REGISTERS, DEPENDENT, INDEPENDENT, KERNEL, LANES, PRODUCTS, READINGS,
};

/// Device memory of one launch, with a stream of its own. The context is current as long as it lives.
struct Bed {
    a: DeviceBuffer<u32>,
    b: DeviceBuffer<u32>,
    c: DeviceBuffer<f32>,
    out: DeviceBuffer<f32>,
    clocks: DeviceBuffer<u64>,
    stream: cust::stream::Stream,
}

impl Bed {
    /// `results` elements of out, NaN at first, and the readings of `warps`.
    fn new(gdn: &Gdn, fragments: &Fragments, results: usize, warps: usize) -> Result<Self> {
        let bed = || -> Result<Self, DriverError> {
            Ok(Self {
                a: DeviceBuffer::from_slice(&fragments.a)?,
                b: DeviceBuffer::from_slice(&fragments.b)?,
                c: DeviceBuffer::from_slice(&fragments.c)?,
                out: DeviceBuffer::from_slice(&vec![f32::NAN; results])?,
                clocks: DeviceBuffer::zeroed(warps * READINGS)?,
                stream: cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None)?,
            })
        };
        let bed = bed().map_err(CudaError::from)?;
        // Copies of few bytes return before they have arrived, and the bed's stream does not wait for them by itself.
        gdn.synchronize(Stream::LEGACY)?;
        Ok(bed)
    }

    fn stream(&self) -> Stream {
        Stream::from(&self.stream)
    }

    fn args(&self, links: u32, warps: u32) -> Args {
        Args {
            a: Global::new(address(&self.a) as *const u32),
            b: Global::new(address(&self.b) as *const u32),
            c: Global::new(address(&self.c) as *const f32),
            out: GlobalMut::new(address(&self.out) as *mut f32),
            clocks: GlobalMut::new(address(&self.clocks) as *mut u64),
            links,
            warps,
        }
    }
}

fn address<T: DeviceCopy>(buffer: &DeviceBuffer<T>) -> u64 {
    buffer.as_device_ptr().as_raw()
}

fn download<T: DeviceCopy + Default + Clone>(buffer: &DeviceBuffer<T>) -> Result<Vec<T>> {
    let mut values = vec![T::default(); buffer.len()];
    buffer.copy_to(&mut values[..]).map_err(|error| CudaError::from(DriverError::from(error)))?;
    Ok(values)
}

/// The entry in blocks of so many threads, at most its own.
fn in_blocks_of(entry: &Entry<Args>, threads: u32) -> Entry<Args> {
    let Entry { symbol, threads: most, shared_bytes, body } = *entry;
    Entry { symbol, threads: threads.min(most), shared_bytes, body }
}

impl Gdn {
    /// Every sum of every chain, as this card's tensor cores have it: [`Fragments::results`] elements.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) below compute capability 8.0; [`Error::Cuda`](crate::Error::Cuda).
    pub fn multiply(&self, fragments: &Fragments) -> Result<Vec<f32>> {
        let _current = self.device.current()?;
        let bed = Bed::new(self, fragments, fragments.results(), 1)?;
        let (args, grid) = (bed.args(fragments.links() as u32, 1), [fragments.chains() as u32, 1]);
        // SAFETY: types: the entry takes `Args`. Lengths: those of the fragments, a block for each chain. Lifetime: the bed
        // lives until the stream has been synchronised, which is next.
        let launched = unsafe { self.device.launch(&KERNEL.entries[PRODUCTS], grid, &args, bed.stream()) };
        self.synchronize(bed.stream())?;
        launched?;
        download(&bed.out)
    }

    /// How fast products follow each other under `load`, all of them of the same random numbers: zeros would cost less
    /// power.
    ///
    /// # Errors
    /// As [`Gdn::multiply`].
    pub fn tensor_rate(&self, load: Load) -> Result<Rate> {
        let _current = self.device.current()?;
        let warps = (load.blocks * load.warps) as usize;
        let fragments = Fragments::seeded(Regime::Normal, 1, 1, 1);
        let bed = Bed::new(self, &fragments, warps * LANES * C_REGISTERS, warps)?;
        let place = match load.chains {
            Chains::One => DEPENDENT,
            Chains::SideBySide => INDEPENDENT,
        };
        let entry = in_blocks_of(&KERNEL.entries[place], load.warps * LANES as u32);
        let args = bed.args(load.turns, load.warps);
        // SAFETY: types: the entry takes `Args`. Lengths: one product, a result and readings for each warp. Lifetime: the bed
        // lives until the stream has been synchronised, which is next.
        let launched = unsafe { self.device.launch(&entry, [load.blocks, 1], &args, bed.stream()) };
        self.synchronize(bed.stream())?;
        launched?;
        Ok(Rate::of(load, &download(&bed.clocks)?))
    }
}

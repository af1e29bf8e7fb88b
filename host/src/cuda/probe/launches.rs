//! What launches cost: kernels that do nothing, one after another, between two events.
use super::super::error::{CudaError, DriverError};
use super::super::{Gdn, Stream};
use super::driver::{Event, Graph, Module, launch_programmatic};
use super::{Bed, in_blocks_of};
use crate::error::{Error, Result};
use crate::probe::{Fragments, LaunchCost, Regime};
use cuda_std::kernel::Arguments;
use kernels_gpu::kernels::tensor_probe::{Args, C_REGISTERS, INDEPENDENT, KERNEL, LANES, NOTHING};

/// Threads of an empty block.
const THREADS: u32 = 4 * LANES as u32;

/// The most kernels of a series.
const MOST_KERNELS: usize = 3;

/// Series that are not counted.
const WARM_UP: usize = 20;

/// Turns of a timed warp in front of a series, some 50 us: longer than the host needs to enqueue it.
const WORK_TURNS: u32 = 1_000;

/// The first card that a kernel can tell to let the next one start.
const EARLY_CAPABILITY: u32 = 90;

/// A kernel that lets the next one start at once, and ends when the one before it has. These two words need PTX 7.8 for
/// sm_90, which no file of host/ptx is, and there is nothing else in it.
const EARLY: &core::ffi::CStr = c"
.version 7.8
.target sm_90
.address_size 64
.visible .entry gdn_launch_probe_early()
{
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    ret;
}
";

/// How kernels follow each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each begins when the one before it has ended.
    Ordinary,
    /// With the attribute for programmatic dependence, by a kernel that does not make use of it.
    Programmatic,
    /// With the attribute, by [`EARLY`].
    Early,
}

/// How a series comes to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Stream,
    Graph,
}

const SERIES: [(Way, Kind, &str); 6] = [
    (Way::Stream, Kind::Ordinary, "stream"),
    (Way::Stream, Kind::Programmatic, "stream, programmatic attribute"),
    (Way::Stream, Kind::Early, "stream, programmatic attribute, early start"),
    (Way::Graph, Kind::Ordinary, "graph"),
    (Way::Graph, Kind::Programmatic, "graph, programmatic attribute"),
    (Way::Graph, Kind::Early, "graph, programmatic attribute, early start"),
];

impl Gdn {
    /// What one to three kernels cost that do nothing, by each way of launching them: on a device at rest, where the host
    /// may be what is slow, and behind other work, where the device is.
    ///
    /// # Errors
    /// [`Error::Refused`] below compute capability 8.0; [`Error::Cuda`]. Where the driver refuses one way, that is in its
    /// cost.
    pub fn launch_costs(&self, samples: usize) -> Result<Vec<LaunchCost>> {
        let _current = self.device.current()?;
        let fragments = Fragments::seeded(Regime::Normal, 1, 1, 1);
        let bed = Bed::new(self, &fragments, LANES * C_REGISTERS, 1)?;
        let series = Series {
            gdn: self,
            early: self.early(),
            args: bed.args(WORK_TURNS, 1),
            stream: bed.stream(),
            events: [Event::new().map_err(CudaError::from)?, Event::new().map_err(CudaError::from)?],
        };
        let mut costs = Vec::new();
        for behind_work in [false, true] {
            for (way, kind, how) in SERIES {
                for kernels in 1..=MOST_KERNELS {
                    let times = series.times(way, kind, kernels, behind_work, samples);
                    costs.push(cost(how, kernels, behind_work, samples, times)?);
                }
            }
        }
        Ok(costs)
    }

    /// [`EARLY`] on this device. The context is current.
    fn early(&self) -> Result<Module, DriverError> {
        if self.facts().capability < EARLY_CAPABILITY {
            let name = "needs compute capability 9.0".to_owned();
            return Err(DriverError { call: "griddepcontrol", code: 0, name });
        }
        Module::load(EARLY, c"gdn_launch_probe_early")
    }
}

/// # Errors
/// Whatever is not the driver's refusal of this way.
fn cost(
    how: &'static str,
    kernels: usize,
    behind_work: bool,
    samples: usize,
    times: Result<Vec<f64>>,
) -> Result<LaunchCost> {
    let (times, refused) = match times {
        Ok(times) => (times, None),
        Err(Error::Cuda(error)) => (Vec::new(), Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let microseconds = times.get(times.len() / 2).copied();
    let samples = if refused.is_some() { 0 } else { samples };
    Ok(LaunchCost {
        how,
        behind_work,
        kernels,
        microseconds,
        microseconds_least: times.first().copied(),
        samples,
        refused,
    })
}

/// What all series need.
struct Series<'a> {
    gdn: &'a Gdn,
    early: Result<Module, DriverError>,
    args: Args,
    stream: Stream,
    events: [Event; 2],
}

impl Series<'_> {
    /// Microseconds of each sample, ascending.
    fn times(&self, way: Way, kind: Kind, kernels: usize, behind_work: bool, samples: usize) -> Result<Vec<f64>> {
        let enqueue = || (0..kernels).try_for_each(|_| self.enqueue(kind));
        let graph = match way {
            Way::Stream => None,
            Way::Graph => {
                Some(Graph::capture(self.stream, || enqueue().map_err(driver_error)).map_err(CudaError::from)?)
            }
        };
        let mut times = Vec::with_capacity(samples);
        for sample in 0..WARM_UP + samples {
            if behind_work {
                self.work()?;
            }
            let [start, end] = &self.events;
            start.record(self.stream).map_err(CudaError::from)?;
            match &graph {
                Some(graph) => graph.launch(self.stream).map_err(CudaError::from)?,
                None => enqueue()?,
            }
            end.record(self.stream).map_err(CudaError::from)?;
            self.gdn.synchronize(self.stream)?;
            if sample >= WARM_UP {
                times.push(start.microseconds_until(end).map_err(CudaError::from)?);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }

    /// One kernel that does nothing.
    fn enqueue(&self, kind: Kind) -> Result<()> {
        let device = &self.gdn.device;
        let entry = in_blocks_of(&KERNEL.entries[NOTHING], THREADS);
        let blocks = self.gdn.facts().multiprocessors;
        let (function, mut parameters) = match (kind, &self.early) {
            (Kind::Ordinary, _) => {
                // SAFETY: types: the entry takes `Args`. Lengths and lifetime: it touches nothing.
                return unsafe { device.launch(&entry, [blocks, 1], &self.args, self.stream) };
            }
            (Kind::Programmatic, _) => (device.function(entry.symbol), self.args.pointers()),
            (Kind::Early, Ok(module)) => (Some(module.function), Vec::new()),
            (Kind::Early, Err(error)) => return Err(CudaError::from(error.clone()).into()),
        };
        let reason = crate::error::Reason::NotLoaded;
        let function = function.ok_or(Error::Refused { kernel: entry.symbol, reason })?;
        // SAFETY: types: `Args` for the entry, and none for the other kernel. Lengths and lifetime: neither touches anything.
        let done = unsafe { launch_programmatic(function, blocks, THREADS, &mut parameters, self.stream) };
        Ok(done.map_err(CudaError::from)?)
    }

    /// Keeps the device busy while the host enqueues.
    fn work(&self) -> Result<()> {
        let entry = in_blocks_of(&KERNEL.entries[INDEPENDENT], LANES as u32);
        // SAFETY: types: the entry takes `Args`. Lengths: one product, room for one warp. Lifetime: the bed's, whose stream
        // is synchronised after each sample.
        unsafe { self.gdn.device.launch(&entry, [1, 1], &self.args, self.stream) }
    }
}

/// The driver's part of an error of a launch.
fn driver_error(error: Error) -> DriverError {
    let words = |name| DriverError { call: "a launch", code: 0, name };
    match error {
        Error::Cuda(error) => match *error {
            CudaError::Driver(source) | CudaError::Launch { source, .. } => source,
            other => words(other.to_string()),
        },
        other => words(other.to_string()),
    }
}

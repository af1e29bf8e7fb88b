//! Driver calls that only the probes make: graphs by capture.
use super::super::error::DriverError;
use super::super::programmatic::{self, Extent};
use super::super::raw::{self, Code, check};
use super::super::stream::Stream;
use core::ffi::{CStr, c_int, c_ulonglong, c_void};
use cust::sys::{CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream};

/// `CUstreamCaptureMode`: other threads are not disturbed.
const CAPTURE_THREAD_LOCAL: c_int = 1;

unsafe extern "C" {
    #[link_name = "cuStreamBeginCapture_v2"]
    fn cuStreamBeginCapture(stream: CUstream, mode: c_int) -> Code;
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> Code;
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> Code;
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> Code;
    fn cuGraphExecDestroy(executable: CUgraphExec) -> Code;
    fn cuGraphDestroy(graph: CUgraph) -> Code;
}

/// Enqueues a launch that may begin before the one in front of it has ended.
///
/// # Safety
/// As [`super::super::device::Device::launch`], with `parameters` those of `function`; the context is current.
pub unsafe fn launch_programmatic(
    function: CUfunction,
    blocks: u32,
    threads: u32,
    parameters: &mut [*mut c_void],
    stream: Stream,
) -> Result<(), DriverError> {
    let extent = Extent { grid: [blocks, 1], threads, shared_bytes: 0 };
    // SAFETY: by the caller.
    unsafe { programmatic::launch(function, extent, parameters, stream) }
}

/// A moment on a stream.
#[derive(Debug)]
pub struct Event(CUevent);

impl Event {
    /// In the current context, which stays current as long as it lives.
    pub fn new() -> Result<Self, DriverError> {
        let mut event = core::ptr::null_mut();
        // SAFETY: the event is written; destroyed in `drop`.
        check("cuEventCreate", unsafe { raw::cuEventCreate(&raw mut event, 0) })?;
        Ok(Self(event))
    }

    /// Once the stream has come so far.
    pub fn record(&self, stream: Stream) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        check("cuEventRecord", unsafe { raw::cuEventRecord(self.0, stream.as_raw().cast()) })
    }

    /// Both have passed.
    pub fn microseconds_until(&self, end: &Self) -> Result<f64, DriverError> {
        let mut milliseconds = 0.0;
        // SAFETY: written; both are alive.
        let code = unsafe { raw::cuEventElapsedTime(&raw mut milliseconds, self.0, end.0) };
        check("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { raw::cuEventDestroy(self.0) };
    }
}

/// A captured graph, ready to run.
#[derive(Debug)]
pub struct Graph {
    graph: CUgraph,
    executable: CUgraphExec,
}

impl Graph {
    /// What `work` enqueues on `stream`. The context is current as long as this lives.
    pub fn capture(stream: Stream, work: impl FnOnce() -> Result<(), DriverError>) -> Result<Self, DriverError> {
        let raw_stream: CUstream = stream.as_raw().cast();
        // SAFETY: the stream is alive and captured by nobody else.
        check("cuStreamBeginCapture", unsafe { cuStreamBeginCapture(raw_stream, CAPTURE_THREAD_LOCAL) })?;
        let worked = work();
        let mut captured = Self { graph: core::ptr::null_mut(), executable: core::ptr::null_mut() };
        // SAFETY: begun above; the graph is written, and destroyed in `drop`. The capture ends whatever `work` said.
        let ended = unsafe { cuStreamEndCapture(raw_stream, &raw mut captured.graph) };
        worked?;
        check("cuStreamEndCapture", ended)?;
        // SAFETY: the executable is written, and destroyed in `drop`.
        let code = unsafe { cuGraphInstantiateWithFlags(&raw mut captured.executable, captured.graph, 0) };
        check("cuGraphInstantiateWithFlags", code)?;
        Ok(captured)
    }

    /// Enqueues it.
    pub fn launch(&self, stream: Stream) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        check("cuGraphLaunch", unsafe { cuGraphLaunch(self.executable, stream.as_raw().cast()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.executable.is_null() {
            // SAFETY: made in `capture`, destroyed once; a graph that still runs is kept by the driver.
            let _ = unsafe { cuGraphExecDestroy(self.executable) };
        }
        if !self.graph.is_null() {
            // SAFETY: as above.
            let _ = unsafe { cuGraphDestroy(self.graph) };
        }
    }
}

/// A module of one kernel without arguments.
#[derive(Debug)]
pub struct Module {
    module: CUmodule,
    pub function: CUfunction,
}

impl Module {
    /// Compiles `ptx` into the current context, which stays current as long as this lives.
    pub fn load(ptx: &CStr, symbol: &CStr) -> Result<Self, DriverError> {
        let mut loaded = Self { module: core::ptr::null_mut(), function: core::ptr::null_mut() };
        // SAFETY: the image ends with a NUL; there are no options; the module is written, and unloaded in `drop`.
        let code = unsafe {
            raw::cuModuleLoadDataEx(
                &raw mut loaded.module,
                ptx.as_ptr().cast(),
                0,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        check("cuModuleLoadDataEx", code)?;
        // SAFETY: the function is written; the name ends with a NUL.
        let code = unsafe { raw::cuModuleGetFunction(&raw mut loaded.function, loaded.module, symbol.as_ptr()) };
        check("cuModuleGetFunction", code)?;
        Ok(loaded)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if !self.module.is_null() {
            // SAFETY: loaded in `load`, unloaded once, after what used it was waited for.
            let _ = unsafe { raw::cuModuleUnload(self.module) };
        }
    }
}

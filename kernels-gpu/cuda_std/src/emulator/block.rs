//! What the words of a running block share: who runs, its memory, its clock and its first fault.
use std::cell::Cell;
use std::panic::Location;
use std::ptr;

use corosensei::Yielder;

use super::collective::Warp;
use super::copies::Copies;
use super::fault::{Fault, Other, Place};
use super::history::History;
use super::memory::Region;
use super::record::{Access, LAST_STAMP, Record};

/// Sixteen bytes of shared memory, which starts as aligned as a kernel may assume.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Line([u8; 16]);

/// A thread's part of the block.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// How it hands over to the scheduler; set when it first runs.
    pub yielder: Option<ptr::NonNull<Yielder<(), ()>>>,
    /// Its asynchronous copies under way.
    pub copies: Copies,
    /// The block barrier at which it waits.
    pub barrier: Option<&'static Location<'static>>,
    pub exited: bool,
}

/// The block that an OS thread runs. It is kept for the next one, to reuse its memory.
#[derive(Debug)]
pub(super) struct Block {
    pub index: [u32; 2],
    /// The thread that runs now.
    pub running: u32,
    /// An access of it, now.
    me: Access,
    /// The accesses that the last block barrier does not precede.
    floor: Access,
    /// The time: barriers of warps and blocks so far.
    now: u32,

    shared: Vec<Line>,
    pub shared_bytes: usize,
    shared_records: Vec<Record>,
    pub regions: Vec<Region>,
    /// The region of the last access, most likely that of the next.
    pub last_region: usize,
    history: History,

    pub warps: Vec<Warp>,
    pub threads: Vec<Thread>,
    /// The first thread to wait at the next block barrier, and where that is.
    pub barrier: Option<(u32, &'static Location<'static>)>,
    pub fault: Option<Fault>,
    /// Where the running thread panics, from the panic hook.
    pub panic_location: Option<String>,
    /// The threads are being unwound.
    pub cancelled: bool,
}

thread_local! {
    /// The block whose kernel runs on this OS thread, null between kernels. One pointer, since every word asks for it.
    static CURRENT: Cell<*mut Block> = const { Cell::new(ptr::null_mut()) };
}

/// The block whose kernel runs on this OS thread.
///
/// A word may make a reference of it for as long as it does not suspend: all threads of a block run on one OS thread,
/// and the scheduler holds no reference while one of them runs.
#[inline]
#[track_caller]
pub(super) fn current() -> *mut Block {
    let block = CURRENT.get();
    assert!(!block.is_null(), "a word of cuda_std outside a kernel: run the kernel with cuda_std::emulator::run");
    block
}

/// The block whose kernel runs on this OS thread, null if none.
pub(super) fn current_or_null() -> *mut Block {
    CURRENT.get()
}

/// Makes a block the current one until it is dropped.
pub(super) struct Current;

impl Current {
    pub fn enter(block: *mut Block) -> Self {
        CURRENT.set(block);
        Self
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(ptr::null_mut());
    }
}

/// Hands over to the scheduler until it resumes this thread.
///
/// # Safety
/// Called by a thread of `block`, with no reference into the block that is used after.
#[inline]
pub(super) unsafe fn suspend(block: *mut Block) {
    // SAFETY: bounds and owner: the running thread has set its yielder, which lives on the thread's own stack; a pointer
    // is taken out before the switch, so that no reference crosses it.
    unsafe {
        let yielder = (&(*block).threads)[(*block).running as usize].yielder;
        yielder.expect("a thread sets its yielder first").as_ref().suspend(());
    }
}

/// Stops the launch: the running thread never goes on.
#[cold]
#[inline(never)]
pub(super) fn fail(fault: Fault) -> ! {
    let block = current();
    // SAFETY: owner: the running thread's block, by `current`; the reference ends before the switches.
    unsafe {
        (*block).fault = Some(fault);
        loop {
            suspend(block);
        }
    }
}

impl Block {
    pub fn new() -> Self {
        Self {
            index: [0; 2],
            running: 0,
            me: Access::default(),
            floor: Access::default(),
            now: 0,
            shared: Vec::new(),
            shared_bytes: 0,
            shared_records: Vec::new(),
            regions: Vec::new(),
            last_region: 0,
            history: History::new(),
            warps: Vec::new(),
            threads: Vec::new(),
            barrier: None,
            fault: None,
            panic_location: None,
            cancelled: false,
        }
    }

    /// Makes the block fresh: shared memory is NaN, no thread has run.
    pub fn start(&mut self, index: [u32; 2], threads: u32, shared_bytes: u32, regions: &[Region]) {
        self.index = index;
        self.shared_bytes = shared_bytes as usize;
        self.shared.clear();
        self.shared.resize(self.shared_bytes.div_ceil(16), Line([0xff; 16]));
        // A copy that a faulty block left under way must not be met by the next one.
        self.shared_records.clear();
        self.shared_records.resize(self.shared_bytes.div_ceil(4), Record::default());
        self.regions.clear();
        self.regions.extend_from_slice(regions);
        self.last_region = 0;
        self.warps.clear();
        self.warps.resize_with(threads as usize / 32, Warp::new);
        self.threads.clear();
        self.threads.resize_with(threads as usize, Thread::default);
        self.barrier = None;
        self.fault = None;
        self.panic_location = None;
        self.cancelled = false;
        self.now = 0;
        self.pass_barrier();
    }

    /// All threads have passed a block barrier.
    pub fn pass_barrier(&mut self) {
        self.tick();
        self.floor = Access::floor(self.now);
        self.history.clear();
        for warp in &mut self.warps {
            warp.interval = self.now;
        }
    }

    /// The running thread's warp has passed a warp barrier.
    pub fn pass_warp_barrier(&mut self) {
        self.tick();
        let warp = self.running as usize / 32;
        self.warps[warp].interval = self.now;
        self.me = Access::new(self.now, self.running);
    }

    /// Advances the time. When its bits are used up, after 16 million barriers, it starts again with all accesses
    /// forgotten: a race across that moment is missed, none is made up.
    fn tick(&mut self) {
        if self.now == LAST_STAMP {
            self.shared_records.iter_mut().for_each(Record::forget);
            self.history.clear();
            self.now = 0;
            self.floor = Access::floor(1);
            for warp in &mut self.warps {
                warp.interval = 1;
            }
        }
        self.now += 1;
    }

    /// Makes `thread` the running one.
    #[inline]
    pub fn switch_to(&mut self, thread: u32) {
        self.running = thread;
        self.me = Access::new(self.warps[thread as usize / 32].interval, thread);
    }

    /// The running thread at a word.
    pub fn place(&self, location: &'static Location<'static>) -> Place {
        Place { block: self.index, thread: self.running, location }
    }

    /// An access of the running thread.
    #[inline]
    pub fn access(&self, location: &'static Location<'static>) -> Access {
        self.me.at(location)
    }

    /// The accesses that the last block barrier does not precede.
    #[inline]
    pub fn floor(&self) -> Access {
        self.floor
    }

    /// The start of shared memory.
    #[inline]
    pub fn shared_start(&mut self) -> *mut u8 {
        self.shared.as_mut_ptr().cast()
    }

    /// The records of the words of shared memory.
    #[inline]
    pub fn shared_records(&mut self) -> &mut [Record] {
        &mut self.shared_records
    }

    /// The record of a word of writable global memory.
    #[inline]
    pub fn global_record(&mut self, word: usize) -> &mut Record {
        self.history.record(word)
    }
}

impl From<Access> for Other {
    fn from(access: Access) -> Self {
        Self { thread: access.thread(), location: access.location() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_starts_again_when_its_bits_are_used_up() {
        let mut block = Block::new();
        block.start([0, 0], 64, 16, &[]);
        block.now = LAST_STAMP - 1;
        block.switch_to(40);
        block.pass_warp_barrier();
        let (writer, floor) = (block.me, block.floor);
        block.shared_records[0].write(writer, floor).unwrap();
        block.switch_to(0);
        block.pass_warp_barrier();
        assert_eq!(block.now, 1);
        // Forgotten, so no race is made up; new accesses are seen.
        let (reader, floor) = (block.me, block.floor);
        block.shared_records[0].read(reader, floor).unwrap();
        block.switch_to(41);
        let writer = block.me;
        assert!(block.shared_records[0].write(writer, floor).is_err());
        block.pass_barrier();
        block.switch_to(41);
        let (writer, floor) = (block.me, block.floor);
        block.shared_records[0].write(writer, floor).unwrap();
    }
}

//! The race rule: what is kept of the accesses to one word, and which of them an access must not follow.
//!
//! Time is a counter that every barrier advances. An access carries the time of its warp's last barrier, so that an
//! earlier access precedes a later one exactly when
//! * a block barrier stands between them: its stamp is below the block's last barrier (`floor`), or
//! * the thread is the same, or
//! * the warp is the same and a warp barrier stands between them: its stamp is below the later one's.
use std::panic::Location;

const STAMP_SHIFT: u32 = 40;
const THREAD_SHIFT: u32 = 30;
const THREAD_MASK: u64 = 0x3ff;
const LOCATION_MASK: u64 = (1 << THREAD_SHIFT) - 1;
/// A location too far from [`ANCHOR`].
const UNKNOWN_LOCATION: u64 = 1 << (THREAD_SHIFT - 1);

/// The stamp of a copy's destination until the copy is delivered: later than every barrier.
const UNDELIVERED: u32 = (1 << (u64::BITS - STAMP_SHIFT)) - 1;
/// The last time that barriers may reach.
pub(super) const LAST_STAMP: u32 = UNDELIVERED - 1;

/// Locations are kept as distances from this one, in units of their alignment. All of them are constants of one
/// program, whose data lies within 4 GiB on the machines that we know; one that does not is forgotten.
static ANCHOR: &Location<'static> = Location::caller();
const _: () = assert!(align_of::<Location<'static>>() == 8);

/// Who touched a word, when and where, in 64 bits: stamp 24, thread 10, location 30. Ordered by stamp first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Access(u64);

impl Access {
    /// The first access that could have the stamp: what is below came before the barrier of that stamp.
    pub fn floor(stamp: u32) -> Self {
        Self(u64::from(stamp) << STAMP_SHIFT)
    }

    /// An access of `thread` whose warp passed its last barrier at `stamp`, at no location yet.
    pub fn new(stamp: u32, thread: u32) -> Self {
        Self(u64::from(stamp) << STAMP_SHIFT | u64::from(thread) << THREAD_SHIFT)
    }

    /// The access with its location. `self` has none yet.
    #[inline]
    pub fn at(self, location: &'static Location<'static>) -> Self {
        let address = std::ptr::from_ref(location).expose_provenance();
        let distance = address.wrapping_sub(std::ptr::from_ref(ANCHOR).addr()) as i64 / 8;
        let limit = UNKNOWN_LOCATION as i64;
        let kept =
            if distance > -limit && distance < limit { distance as u64 & LOCATION_MASK } else { UNKNOWN_LOCATION };
        Self(self.0 | kept)
    }

    /// The same access as the destination of a copy under way.
    pub fn undelivered(self) -> Self {
        Self(self.0 | Self::floor(UNDELIVERED).0)
    }

    /// Whether this is the destination of a copy under way.
    pub fn is_undelivered(self) -> bool {
        self.stamp() == UNDELIVERED
    }

    /// The thread's index in its block.
    pub fn thread(self) -> u32 {
        (self.0 >> THREAD_SHIFT & THREAD_MASK) as u32
    }

    /// Where it was, if it was near enough to be kept.
    pub fn location(self) -> Option<&'static Location<'static>> {
        let kept = self.0 & LOCATION_MASK;
        if kept == UNKNOWN_LOCATION {
            return None;
        }
        let unused = u64::BITS - THREAD_SHIFT;
        let distance = ((kept << unused) as i64 >> unused) * 8;
        let address = std::ptr::from_ref(ANCHOR).addr().wrapping_add(distance as usize);
        // SAFETY: bounds: `at` made `kept` from the address of a `&'static Location`, of which this is the inverse, and
        // exposed its provenance; owner: nobody writes a location.
        Some(unsafe { &*std::ptr::with_exposed_provenance(address) })
    }

    fn stamp(self) -> u32 {
        (self.0 >> STAMP_SHIFT) as u32
    }

    fn warp(self) -> u32 {
        self.thread() / 32
    }

    /// Whether this access precedes `later`, which is in the same interval of the block.
    fn precedes(self, later: Self) -> bool {
        !self.is_undelivered()
            && (self.thread() == later.thread() || self.warp() == later.warp() && self.stamp() < later.stamp())
    }
}

/// An earlier access that does not precede the one that asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub access: Access,
    pub wrote: bool,
}

/// What is kept of the accesses to a word: enough to find a conflict whenever there is one.
///
/// Of the readers two are enough, if of different warps where there are any such: a writer precedes neither all lanes
/// of another warp nor the other lanes of its own that have passed no warp barrier since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    writer: Access,
    reader: Access,
    other_reader: Access,
}

impl Record {
    /// Notes a read.
    #[inline]
    pub fn read(&mut self, reader: Access, floor: Access) -> Result<(), Conflict> {
        if self.writer >= floor && !self.writer.precedes(reader) {
            return Err(Conflict { access: self.writer, wrote: true });
        }
        if self.reader >= floor && self.reader.thread() != reader.thread() {
            let two_warps = self.other_reader >= floor && self.other_reader.warp() != reader.warp();
            if self.reader.warp() != reader.warp() || !two_warps {
                self.other_reader = self.reader;
            }
        }
        self.reader = reader;
        Ok(())
    }

    /// Notes a write.
    #[inline]
    pub fn write(&mut self, writer: Access, floor: Access) -> Result<(), Conflict> {
        if self.writer.max(self.reader).max(self.other_reader) >= floor {
            for (access, wrote) in [(self.writer, true), (self.reader, false), (self.other_reader, false)] {
                if access >= floor && !access.precedes(writer) {
                    return Err(Conflict { access, wrote });
                }
            }
        }
        self.writer = writer;
        Ok(())
    }

    /// A copy to this word is under way, issued by `writer`, whose write has been noted.
    pub fn set_undelivered(&mut self, writer: Access) {
        self.writer = writer.undelivered();
    }

    /// The copy under way to this word is delivered, as a write of the thread that issued it.
    pub fn deliver(&mut self, writer: Access) {
        debug_assert!(self.writer.is_undelivered());
        self.writer = writer;
    }

    /// Forgets all but a copy under way.
    pub fn forget(&mut self) {
        let writer = if self.writer.is_undelivered() { self.writer } else { Access::default() };
        *self = Self { writer, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_keeps_what_it_is_made_of() {
        let here = Location::caller();
        let access = Access::new(LAST_STAMP, 1023).at(here);
        assert_eq!((access.stamp(), access.thread(), access.location()), (LAST_STAMP, 1023, Some(here)));
        let copy = access.undelivered();
        assert!(copy.is_undelivered() && !access.is_undelivered());
        assert_eq!((copy.thread(), copy.location()), (1023, Some(here)));
        // One that is not among the program's constants, as far away as a heap is.
        let far: &'static Location<'static> = Box::leak(Box::new(*here));
        assert!(Access::new(1, 2).at(far).location().is_none_or(|location| location == here));
    }

    #[test]
    fn a_copy_under_way_precedes_nothing_and_outlives_a_forgotten_past() {
        let (thread, floor) = (Access::new(1, 0), Access::floor(1));
        let mut record = Record::default();
        record.write(thread, floor).unwrap();
        record.set_undelivered(thread);
        record.forget();
        assert!(record.read(thread, floor).unwrap_err().access.is_undelivered());
        assert!(record.write(Access::new(2, 0), Access::floor(2)).unwrap_err().access.is_undelivered());
        record.deliver(Access::new(2, 0));
        assert!(record.read(Access::new(2, 0), Access::floor(2)).is_ok());
        assert!(record.read(Access::new(2, 1), Access::floor(2)).is_err());
        assert!(record.read(Access::new(3, 1), Access::floor(3)).is_ok());
    }
}

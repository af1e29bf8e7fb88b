//! Tensors whose element type is known when a kernel runs: 32-bit floats, or 16-bit ones that are widened to them.
//!
//! bf16 is the upper half of a 32-bit float, so that a shift reads it on any card; f16 has its conversion on all of them.
//! Reading and widening are two steps, since what is read ahead must not be waited for.
use cuda_std::float::{to_bf16, to_f16, unpack_bf16x2, unpack_f16x2};
use cuda_std::memory::Quad;
use cuda_std::{Global, GlobalMut};

/// An element type: 32-bit floats.
pub const F32: u32 = 0;
/// An element type: the upper halves of 32-bit floats.
pub const BF16: u32 = 1;
/// An element type: 16-bit floats of IEEE 754.
pub const F16: u32 = 2;

/// One element as it lies in memory; 16-bit ones in the low half.
pub type Raw = u32;
/// Four consecutive elements as they lie in memory: in four words, or in the first two.
pub type RawQuad = [u32; 4];

/// Bytes of an element of type `element`.
#[inline(always)]
#[must_use]
pub const fn bytes(element: u32) -> usize {
    if element == F32 { 4 } else { 2 }
}

/// The number that a word's low half stands for, and that of its high half.
#[inline(always)]
fn widen_pair(element: u32, pair: u32) -> (f32, f32) {
    if element == BF16 { unpack_bf16x2(pair) } else { unpack_f16x2(pair) }
}

/// The number that an element stands for.
#[inline(always)]
#[must_use]
pub fn widen(element: u32, raw: Raw) -> f32 {
    if element == F32 { f32::from_bits(raw) } else { widen_pair(element, raw).0 }
}

/// The numbers that groups of four elements stand for.
#[inline(always)]
#[must_use]
pub fn widen_quads<const N: usize>(element: u32, raw: &[RawQuad; N]) -> [Quad; N] {
    let mut quads = [[0.0; 4]; N];
    if element == F32 {
        for n in 0..N {
            quads[n] = raw[n].map(f32::from_bits);
        }
    } else {
        for n in 0..N {
            let (pair, next) = (widen_pair(element, raw[n][0]), widen_pair(element, raw[n][1]));
            quads[n] = [pair.0, pair.1, next.0, next.1];
        }
    }
    quads
}

/// Elements that are only read.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    memory: Global<u8>,
    element: u32,
}

impl Elements {
    /// Those of type `element` at `memory`.
    #[inline(always)]
    #[must_use]
    pub fn new(memory: Global<u8>, element: u32) -> Self {
        Self { memory, element }
    }

    /// Those that start `elements` further on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, elements: usize) -> Self {
        Self { memory: self.memory.offset(elements * bytes(self.element)), ..self }
    }

    /// The first element.
    ///
    /// # Safety
    /// It lies inside the memory, and nobody writes it during the launch.
    #[inline(always)]
    #[must_use]
    pub unsafe fn first(self) -> Raw {
        // SAFETY: the caller's contract; an element has a word or a half.
        unsafe {
            if self.element == F32 { self.memory.cast::<u32>().at(0) } else { self.memory.cast::<u16>().at(0).into() }
        }
    }

    /// `N` groups of four elements, each `step` after the one before, by the widest reads that the address allows.
    ///
    /// # Safety
    /// As [`Elements::first`], for all of them. `step` is a multiple of 4.
    #[inline(always)]
    #[must_use]
    pub unsafe fn quads<const N: usize>(self, step: usize) -> [RawQuad; N] {
        let mut raw = [[0; 4]; N];
        let aligned = self.memory.as_ptr().addr().is_multiple_of(4 * bytes(self.element));
        for n in 0..N {
            // SAFETY: bounds: the caller's. The wide reads start on their own size: the address does, and each step keeps it.
            unsafe {
                match (self.element == F32, aligned) {
                    (true, true) => raw[n] = self.memory.cast::<f32>().quad(n * step).map(f32::to_bits),
                    (true, false) => {
                        for i in 0..4 {
                            raw[n][i] = self.memory.cast::<u32>().at(n * step + i);
                        }
                    }
                    (false, true) => {
                        let halves = self.memory.cast::<u64>().at(n * step / 4);
                        raw[n][0] = halves as u32;
                        raw[n][1] = (halves >> 32) as u32;
                    }
                    (false, false) => {
                        let half = |i| u32::from(self.memory.cast::<u16>().at(n * step + i));
                        raw[n][0] = half(0) | half(1) << 16;
                        raw[n][1] = half(2) | half(3) << 16;
                    }
                }
            }
        }
        raw
    }
}

/// Elements that are written.
#[derive(Clone, Copy, Debug)]
pub struct ElementsMut {
    memory: GlobalMut<u8>,
    element: u32,
}

impl ElementsMut {
    /// Those of type `element` at `memory`.
    #[inline(always)]
    #[must_use]
    pub fn new(memory: GlobalMut<u8>, element: u32) -> Self {
        Self { memory, element }
    }

    /// Those that start `elements` further on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, elements: usize) -> Self {
        Self { memory: self.memory.offset(elements * bytes(self.element)), ..self }
    }

    /// Writes four elements together with three other threads that have the same four: each writes what it is `part` of
    /// (0 to 3, other threads write nothing). Two 16-bit elements go as one word where they start on one.
    ///
    /// # Safety
    /// The four elements lie inside the memory, and no other threads touch them before a barrier.
    #[inline(always)]
    pub unsafe fn put_quad_part(self, part: usize, values: Quad) {
        // SAFETY: bounds: part < 4, and half of it < 2, by the caller. Owner: the thread with this part.
        unsafe {
            if self.element != F32 && self.memory.as_ptr().addr().is_multiple_of(4) {
                if part < 2 {
                    let (low, high) = if part == 0 { (values[0], values[1]) } else { (values[2], values[3]) };
                    let pair = u32::from(self.narrow(low)) | u32::from(self.narrow(high)) << 16;
                    self.memory.cast::<u32>().put(part, pair);
                }
            } else if part < 4 {
                let mut mine = values[0];
                for n in 1..4 {
                    if part == n {
                        mine = values[n];
                    }
                }
                if self.element == F32 {
                    self.memory.cast::<f32>().put(part, mine);
                } else {
                    self.memory.cast::<u16>().put(part, self.narrow(mine));
                }
            }
        }
    }

    /// Writes four elements by the widest writes that the address allows.
    ///
    /// # Safety
    /// The four elements lie inside the memory, and no other thread touches them before a barrier.
    #[inline(always)]
    pub unsafe fn put_quad(self, values: Quad) {
        let aligned = self.memory.as_ptr().addr().is_multiple_of(4 * bytes(self.element));
        // SAFETY: bounds, owner: the caller's. The wide writes start on their own size.
        unsafe {
            match (self.element == F32, aligned) {
                (true, true) => self.memory.cast::<f32>().put_quad(0, values),
                (true, false) => {
                    for i in 0..4 {
                        self.memory.cast::<f32>().put(i, values[i]);
                    }
                }
                (false, true) => {
                    let [a, b, c, d] = values.map(|value| u64::from(self.narrow(value)));
                    self.memory.cast::<u64>().put(0, a | b << 16 | c << 32 | d << 48);
                }
                (false, false) => {
                    for i in 0..4 {
                        self.memory.cast::<u16>().put(i, self.narrow(values[i]));
                    }
                }
            }
        }
    }

    /// The bits of the 16-bit element nearest to `value`.
    #[inline(always)]
    fn narrow(self, value: f32) -> u16 {
        if self.element == BF16 { to_bf16(value) } else { to_f16(value) }
    }
}

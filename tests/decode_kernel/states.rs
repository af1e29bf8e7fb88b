//! Pools of states in memory, and the tables that name their slots.
use cuda_std::emulator::Memory;
use cuda_std::{Global, GlobalMut};
use host::{HEAD_DIM, Heads};
use kernels_gpu::kernels::slots::{INDEX_32, INDEX_64, Pool};

/// A pool of states.
#[derive(Clone, Debug)]
pub struct States {
    pub data: Vec<f32>,
    pub pool: Pool,
    /// Elements in front of the first slot.
    pub start: usize,
}

impl States {
    /// A pool of `pool`'s strides whose every element is `fill`.
    pub fn new(heads: &Heads, pool: Pool, fill: f32) -> Self {
        let last = [
            (pool.slots.max(1), pool.slot_stride),
            (heads.num_v_heads, pool.head_stride),
            (HEAD_DIM, pool.row_stride),
            (HEAD_DIM, pool.column_stride),
        ];
        let elements: usize = last.iter().map(|(count, stride)| (count - 1) * stride).sum::<usize>() + 1;
        Self { data: vec![fill; elements + 7], pool, start: 0 }
    }

    /// Where the elements of a slot lie, in the order `[value head][row][column]`.
    fn places(&self, heads: &Heads, slot: usize) -> Vec<usize> {
        let mut places = Vec::new();
        for head in 0..heads.num_v_heads {
            for row in 0..HEAD_DIM {
                for column in 0..HEAD_DIM {
                    let inside = row * self.pool.row_stride + column * self.pool.column_stride;
                    places.push(self.start + self.pool.head(slot, head) + inside);
                }
            }
        }
        places
    }

    pub fn lend<'a>(&'a mut self, memory: &mut Memory<'a>) -> Lent {
        (memory.read_write(&mut self.data).offset(self.start), self.pool)
    }

    pub fn slot(&self, heads: &Heads, slot: usize) -> Vec<f32> {
        self.places(heads, slot).into_iter().map(|place| self.data[place]).collect()
    }

    pub fn set_slot(&mut self, heads: &Heads, slot: usize, values: &[f32]) {
        for (place, &value) in self.places(heads, slot).into_iter().zip(values) {
            self.data[place] = value;
        }
    }

    /// That nothing but the slots `written` has changed since `before`.
    #[track_caller]
    pub fn assert_untouched(&self, heads: &Heads, before: &Self, written: &[usize]) {
        let mut after = self.clone();
        for &slot in written {
            after.set_slot(heads, slot, &before.slot(heads, slot));
        }
        assert!(bits(&after.data) == bits(&before.data), "something outside slots {written:?} was written");
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Pools in the orders that engines use.
pub fn pools(heads: &Heads, slots: usize) -> [(&'static str, Pool); 5] {
    let head = HEAD_DIM * HEAD_DIM;
    let values = heads.num_v_heads;
    let [row_stride, column_stride] = [HEAD_DIM, 1];
    let key_major = Pool { slot_stride: values * head, head_stride: head, row_stride, column_stride, slots };
    [
        ("[slot][head][row][column]", key_major),
        ("[slot][head][column][row]", Pool { row_stride: 1, column_stride: HEAD_DIM, ..key_major }),
        ("[slot][row][head][column]", Pool { head_stride: HEAD_DIM, row_stride: values * HEAD_DIM, ..key_major }),
        ("slots 33 further", Pool { slot_stride: values * head + 33, ..key_major }),
        ("rows of 129", Pool { slot_stride: values * 129 * 128, head_stride: 129 * 128, row_stride: 129, ..key_major }),
    ]
}

/// Where states go.
#[derive(Clone, Debug)]
pub enum Target {
    Nowhere,
    /// The pool of initial states, in place.
    Initial,
    Pool(States),
}

impl Target {
    pub fn lend<'a>(&'a mut self, initial: Lent, memory: &mut Memory<'a>) -> Lent {
        match self {
            Self::Nowhere => none(),
            Self::Initial => initial,
            Self::Pool(states) => states.lend(memory),
        }
    }
}

/// A pool as the kernel takes it.
pub type Lent = (GlobalMut<f32>, Pool);

pub fn none() -> Lent {
    let pool = Pool { slot_stride: 0, head_stride: 0, row_stride: 0, column_stride: 0, slots: 0 };
    (GlobalMut::new(std::ptr::null_mut()), pool)
}

/// A table on the device.
#[derive(Clone, Debug)]
pub enum Indices {
    I32(Vec<i32>),
    U32(Vec<u32>),
    I64(Vec<i64>),
}

impl Indices {
    pub fn lend<'a>(this: Option<&'a Self>, memory: &mut Memory<'a>) -> (Global<u8>, u32) {
        match this {
            None => (Global::new(std::ptr::null()), INDEX_32),
            Some(Self::I32(table)) => (memory.read_only(table).cast(), INDEX_32),
            Some(Self::U32(table)) => (memory.read_only(table).cast(), INDEX_32),
            Some(Self::I64(table)) => (memory.read_only(table).cast(), INDEX_64),
        }
    }
}

//! Seeded products in the form that a warp's lanes hold, and how two computations of them compare.
#![forbid(unsafe_code)]
use std::fmt;

use kernels_gpu::kernels::tensor_probe::{A_REGISTERS, B_REGISTERS, C_REGISTERS, LANES};
use serde::Serialize;

use super::regimes::{Matrices, Regime};
use crate::inputs::{Stream, Tensor};

/// Sizes of a product: a is `ROWS` x `DEPTH`, b `DEPTH` x `COLUMNS`.
pub(super) const ROWS: usize = 16;
pub(super) const DEPTH: usize = 16;
pub(super) const COLUMNS: usize = 8;

/// Products of a chain.
pub const CHAIN_LINKS: usize = 16;

/// Differences that are kept with all their numbers.
const KEPT: usize = 3;

/// Products of one regime, in chains of equal length.
#[derive(Clone, Debug)]
pub struct Fragments {
    regime: Regime,
    links: usize,
    /// `[product][lane][4]`.
    pub a: Vec<u32>,
    /// `[product][lane][2]`.
    pub b: Vec<u32>,
    /// `[chain][lane][4]`.
    pub c: Vec<f32>,
}

impl Fragments {
    /// So many chains of `links` products each; the same seed gives the same bits everywhere.
    #[must_use]
    pub fn seeded(regime: Regime, chains: usize, links: usize, seed: u64) -> Self {
        let mut fragments = Self { regime, links, a: Vec::new(), b: Vec::new(), c: Vec::new() };
        for product in 0..chains * links {
            let stream = (regime as usize) << 32 | links << 24 | product;
            let matrices = regime.draw(&mut Stream::new(seed, Tensor::Products, stream));
            fragments.push(&matrices, product.is_multiple_of(links));
        }
        fragments
    }

    /// Deals a product to the lanes, as `cuda_std::tensor` says.
    fn push(&mut self, Matrices { a, b, c }: &Matrices, first: bool) {
        for lane in 0..LANES {
            let (row, pair) = (lane / 4, 2 * (lane % 4));
            let two = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
            for (row, column) in [(row, pair), (row + 8, pair), (row, pair + 8), (row + 8, pair + 8)] {
                self.a.push(two(a[row][column], a[row][column + 1]));
            }
            for k in [pair, pair + 8] {
                self.b.push(two(b[k][row], b[k + 1][row]));
            }
            if first {
                self.c.extend([c[row][pair], c[row][pair + 1], c[row + 8][pair], c[row + 8][pair + 1]]);
            }
        }
    }

    /// Where the numbers come from.
    #[must_use]
    pub fn regime(&self) -> Regime {
        self.regime
    }

    /// Products of a chain.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links
    }

    /// Chains.
    #[must_use]
    pub fn chains(&self) -> usize {
        self.c.len() / (LANES * C_REGISTERS)
    }

    /// Products of all chains.
    #[must_use]
    pub fn products(&self) -> usize {
        self.chains() * self.links
    }

    /// Elements of all results: every sum of every chain, `[product][lane][4]`.
    #[must_use]
    pub fn results(&self) -> usize {
        self.products() * LANES * C_REGISTERS
    }

    /// Compares every bit of two computations of these products. NaNs of any bits are equal. Behind the first difference of
    /// an element's chain the addends differ, so that nothing more of it is compared.
    ///
    /// # Panics
    /// If one of them has not [`Fragments::results`] elements.
    #[must_use]
    pub fn compare(&self, expected: &[f32], actual: &[f32]) -> Differences {
        assert_eq!((expected.len(), actual.len()), (self.results(), self.results()), "results to compare");
        let mut differences = Differences {
            regime: self.regime,
            chains: self.chains(),
            links: self.links,
            products: self.products(),
            products_that_differ: 0,
            results: self.results(),
            results_that_differ: 0,
            first: Vec::new(),
        };
        let size = LANES * C_REGISTERS;
        for chain in 0..self.chains() {
            let mut differed = [false; LANES * C_REGISTERS];
            for product in chain * self.links..(chain + 1) * self.links {
                let mut differs = false;
                for (element, differed) in differed.iter_mut().enumerate() {
                    let index = product * size + element;
                    if *differed || same(expected[index], actual[index]) {
                        continue;
                    }
                    (*differed, differs) = (true, true);
                    differences.results_that_differ += 1;
                    if differences.first.len() < KEPT {
                        differences.first.push(self.difference(product, element, expected, actual));
                    }
                }
                differences.products_that_differ += usize::from(differs);
            }
        }
        differences
    }

    /// All there is to know of one result.
    fn difference(&self, product: usize, element: usize, expected: &[f32], actual: &[f32]) -> Difference {
        let (lane, register) = (element / C_REGISTERS, element % C_REGISTERS);
        let (row, column) = (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2);
        let index = product * LANES * C_REGISTERS + element;
        let addend = match product % self.links {
            0 => self.c[product / self.links * LANES * C_REGISTERS + element],
            _ => expected[index - LANES * C_REGISTERS],
        };
        let half = |register: u32, k: usize| format!("{:04x}", register >> (16 * (k % 2)) & 0xffff);
        let (a, b): (Vec<String>, Vec<String>) = (0..DEPTH)
            .map(|k| {
                let pair = k % 8 / 2;
                let a = (product * LANES + row % 8 * 4 + pair) * A_REGISTERS + row / 8 + 2 * (k / 8);
                let b = (product * LANES + column * 4 + pair) * B_REGISTERS + k / 8;
                (half(self.a[a], k), half(self.b[b], k))
            })
            .unzip();
        let bits = |value: f32| format!("{:08x}", value.to_bits());
        Difference {
            product,
            link: product % self.links,
            row,
            column,
            expected: bits(expected[index]),
            actual: bits(actual[index]),
            addend: bits(addend),
            a: a.join(" "),
            b: b.join(" "),
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// How two computations of the same products compare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// Of the products.
    pub regime: Regime,
    /// Chains of products.
    pub chains: usize,
    /// Products of a chain.
    pub links: usize,
    /// All of them.
    pub products: usize,
    /// Those with an element that differs, though its addend does not.
    pub products_that_differ: usize,
    /// Elements of all results.
    pub results: usize,
    /// Those that differ, though their addends do not.
    pub results_that_differ: usize,
    /// The first of them.
    pub first: Vec<Difference>,
}

/// One element with all that it was made of, in hexadecimal: floats of 8 digits, halves of 4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Which product.
    pub product: usize,
    /// Its place in the chain.
    pub link: usize,
    /// Row of the result.
    pub row: usize,
    /// Column of the result.
    pub column: usize,
    /// By the emulation.
    pub expected: String,
    /// By the card.
    pub actual: String,
    /// What the products are added to.
    pub addend: String,
    /// The row of a.
    pub a: String,
    /// The column of b.
    pub b: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { product, link, row, column, expected, actual, addend, a, b } = self;
        write!(
            formatter,
            "product {product} (link {link}), row {row}, column {column}: {actual}, emulated {expected}\n      c {addend}\n\
             \x20     a {a}\n      b {b}"
        )
    }
}

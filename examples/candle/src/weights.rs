//! Random weights that a seed names, in the place of a file's.
#![forbid(unsafe_code)]
use candle_core::{Device, Result, Tensor};
use candle_nn::Linear;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal, Uniform};

/// Draws one tensor after the other: the same ones for the same seed and order.
#[derive(Debug)]
pub struct Weights {
    generator: ChaCha8Rng,
    device: Device,
}

impl Weights {
    /// Those of `seed`, on `device`.
    #[must_use]
    pub fn new(seed: u64, device: &Device) -> Self {
        Self { generator: ChaCha8Rng::seed_from_u64(seed), device: device.clone() }
    }

    /// Normal deviates around `mean`.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn normal(&mut self, shape: &[usize], mean: f64, deviation: f64) -> Result<Tensor> {
        self.draw(shape, |generator| {
            let normal: f64 = StandardNormal.sample(generator);
            mean + deviation * normal
        })
    }

    /// A projection that keeps the size of what it is given.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn linear(&mut self, from: usize, to: usize) -> Result<Linear> {
        Ok(Linear::new(self.normal(&[to, from], 0.0, 1.0 / (from as f64).sqrt())?, None))
    }

    /// The factors of a norm.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn norm(&mut self, width: usize) -> Result<Tensor> {
        self.normal(&[width], 1.0, 0.1)
    }

    /// `A_log` as models start with it: log of a uniform deviate up to 16.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn a_log(&mut self, heads: usize) -> Result<Tensor> {
        let rates = Uniform::new(1.0f64, 16.0).expect("a range");
        self.draw(&[heads], |generator| rates.sample(generator).ln())
    }

    /// `dt_bias` as models start with it: softplus of it is spread evenly over the powers from 0.001 to 0.1, so that heads
    /// remember from one token to thousands.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn dt_bias(&mut self, heads: usize) -> Result<Tensor> {
        let logs = Uniform::new(1e-3f64.ln(), 1e-1f64.ln()).expect("a range");
        self.draw(&[heads], |generator| logs.sample(generator).exp().exp_m1().ln())
    }

    fn draw(&mut self, shape: &[usize], mut sample: impl FnMut(&mut ChaCha8Rng) -> f64) -> Result<Tensor> {
        let count = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|_| sample(&mut self.generator) as f32).collect();
        Tensor::from_vec(data, shape, &self.device)
    }
}

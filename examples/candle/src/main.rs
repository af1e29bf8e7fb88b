//! `generate` runs the model; `e2e` says what another path of the recurrence changes about it.
#![forbid(unsafe_code)]
use anyhow::Result;
use candle_core::Device;
use candle_example::config::Config;
use candle_example::gated_delta_net::heads;
use candle_example::model::Model;
use candle_example::on_candle::OnCandle;
use host::cpu::Path;

fn main() -> Result<()> {
    let config = Config::SMALL;
    let model = Model::new(&config, 1, &Device::Cpu)?;
    let mut recurrence = OnCandle::new(&heads(&config)?, config.layers, Path::Recurrent, &Device::Cpu)?;
    let mut cache = model.cache()?;
    let logits = model.forward(&[1, 2, 3], 1, &mut cache, &mut recurrence)?;
    println!("{:?}", model.generate(&logits, 32, &mut cache, &mut recurrence)?);
    Ok(())
}

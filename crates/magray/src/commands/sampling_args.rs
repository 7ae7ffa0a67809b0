//! Flags of the commands that generate text: how tokens are chosen.
//! Checks no value: the engine does.

use clap::Args;
use magray_engine::decoder::{SPECULATE_MAX, Sampling};

use crate::generation::new_seed;

/// How tokens are chosen.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Draw tokens, the likelier the lower; 0 takes the likeliest [default: 0, of a chat 0.6]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Draw of this many likeliest tokens; 0: of all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Draw of the likeliest tokens that have this probability together
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Draw of tokens with at least this part of the highest probability
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Divide the logits of tokens that the text has
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Taken from a token's logit for each time it was chosen
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Taken from the logit of a token that was chosen
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// The same seed draws the same tokens [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Propose this many tokens for each pass from what the text has, 0 to 15; changes no answer [default: chat.speculate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=i64::from(SPECULATE_MAX)))]
    speculate: Option<u8>,
}

impl SamplingArgs {
    /// With this temperature where none is said.
    pub(crate) fn sampling(&self, ignores_end: bool, temperature: f32) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(temperature),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            ignores_end,
            seed: self.seed.unwrap_or_else(new_seed),
            speculate: self.speculate,
            ..Sampling::default()
        }
    }
}

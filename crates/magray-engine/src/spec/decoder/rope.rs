//! How positions turn queries and keys, and the frequencies that follow from it.
//! Never changes frequencies as a sequence grows: keys that are kept would not fit any more.

use std::f64::consts::PI;

/// Rotary positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the wavelengths.
    pub theta: f64,
    /// How many numbers of each head are turned: the first ones.
    pub rotated: usize,
    /// Which numbers make a pair.
    pub layout: RopeLayout,
    /// The context that the model was first made for.
    pub original_context: usize,
    /// How it was stretched.
    pub scaling: Scaling,
}

/// Which numbers of a head are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// A number of the first half with one of the second.
    Halves,
    /// Neighbours.
    Neighbours,
}

/// How frequencies are stretched for longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All by the same factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// By a larger base, from the context that is used.
    Dynamic {
        /// The factor.
        factor: f64,
    },
    /// Long waves by the factor, short ones not, those between in part.
    Yarn {
        /// The factor.
        factor: f64,
        /// What queries and keys are multiplied with; follows from the factor where it is not given.
        attention_factor: Option<f64>,
        /// Turns in the original context above which a wave is short.
        beta_fast: f64,
        /// Turns in the original context below which a wave is long.
        beta_slow: f64,
        /// Whether the borders are whole pairs.
        truncate: bool,
    },
    /// As Llama 3.1 has it: by wavelength.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Waves longer than the original context divided by it are stretched.
        low_freq_factor: f64,
        /// Waves shorter than the original context divided by it are not.
        high_freq_factor: f64,
    },
    /// A divisor for each pair: one list up to the original context, one for longer ones.
    LongRope {
        /// Up to the original context.
        short: Vec<f32>,
        /// Beyond it.
        long: Vec<f32>,
        /// What queries and keys are multiplied with.
        attention_factor: f64,
    },
    /// A divisor for each pair.
    Divided(Vec<f32>),
}

/// Turns a position of one token makes, a frequency a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Radians a position.
    pub radians: Vec<f32>,
    /// What queries and keys are multiplied with.
    pub scale: f32,
}

impl Rope {
    /// Numbers that contradict each other.
    pub(super) fn contradiction(&self) -> Option<String> {
        let pairs = self.rotated / 2;
        let wrong =
            |list: &Vec<f32>| list.len() != pairs || list.iter().any(|divisor| !divisor.is_finite() || *divisor <= 0.0);
        match &self.scaling {
            Scaling::LongRope { short, long, .. } if wrong(short) || wrong(long) => {
                Some(format!("its rope has {} and {} factors for {pairs} pairs, all above 0", short.len(), long.len()))
            }
            Scaling::Divided(list) if wrong(list) => {
                Some(format!("its rope has {} factors for {pairs} pairs, all above 0", list.len()))
            }
            _ => None,
        }
    }

    /// The frequencies for sequences of up to this many tokens.
    pub fn frequencies(&self, context: usize) -> Frequencies {
        let dimensions = self.rotated as f64;
        let radians = |theta: f64| move |pair: usize| theta.powf(-2.0 * pair as f64 / dimensions);
        let plain = radians(self.theta);
        let original = self.original_context as f64;
        let mut scale = 1.0;
        let pairs = 0..self.rotated / 2;
        let radians: Vec<f64> = match &self.scaling {
            Scaling::None => pairs.map(plain).collect(),
            Scaling::Linear { factor } => pairs.map(|pair| plain(pair) / factor).collect(),
            Scaling::Dynamic { factor } => {
                let stretch = factor * (context as f64).max(original) / original - (factor - 1.0);
                pairs.map(radians(self.theta * stretch.powf(dimensions / (dimensions - 2.0)))).collect()
            }
            &Scaling::Yarn { factor, attention_factor, beta_fast, beta_slow, truncate } => {
                scale = attention_factor.unwrap_or(if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 });
                let pair_of = |turns: f64| dimensions * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
                let (low, high) = (pair_of(beta_fast), pair_of(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(dimensions - 1.0));
                let width = if low == high { 0.001 } else { high - low };
                let stretched = |pair: usize| ((pair as f64 - low) / width).clamp(0.0, 1.0);
                pairs.map(|pair| plain(pair) * (stretched(pair) / factor + 1.0 - stretched(pair))).collect()
            }
            &Scaling::Llama3 { factor, low_freq_factor, high_freq_factor } => {
                let stretched = |pair: usize| {
                    let turns = original * plain(pair) / (2.0 * PI);
                    let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    plain(pair) * (kept + (1.0 - kept) / factor)
                };
                pairs.map(stretched).collect()
            }
            Scaling::LongRope { short, long, attention_factor } => {
                scale = *attention_factor;
                let divisors = if context > self.original_context { long } else { short };
                pairs.map(|pair| plain(pair) / f64::from(divisors[pair])).collect()
            }
            Scaling::Divided(divisors) => pairs.map(|pair| plain(pair) / f64::from(divisors[pair])).collect(),
        };
        Frequencies { radians: radians.into_iter().map(|x| x as f32).collect(), scale: scale as f32 }
    }
}

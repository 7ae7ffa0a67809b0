//! Names the ways in which one vector is made of a text's token vectors. Computes none of them.

use std::{fmt, str::FromStr};

/// A way to make one vector of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The vector of the first token.
    Cls,
    /// The largest value of each dimension.
    Max,
    /// The mean of all tokens.
    Mean,
    /// The sum of all tokens over the square root of their count.
    MeanSqrtLen,
    /// The mean in which the first token counts once, the second twice, and so on.
    WeightedMean,
    /// The vector of the last token.
    Last,
}

impl Pooling {
    /// Every way, in the order in which a model with several of them joins their vectors.
    pub const ALL: [Self; 6] = [Self::Cls, Self::Max, Self::Mean, Self::MeanSqrtLen, Self::WeightedMean, Self::Last];
}

/// A word that names no pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPooling(pub String);

impl fmt::Display for UnknownPooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown pooling '{}': the known are", self.0)?;
        Pooling::ALL.iter().try_for_each(|pooling| write!(f, " {pooling}"))
    }
}

impl std::error::Error for UnknownPooling {}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cls => "cls",
            Self::Max => "max",
            Self::Mean => "mean",
            Self::MeanSqrtLen => "mean_sqrt_len_tokens",
            Self::WeightedMean => "weightedmean",
            Self::Last => "lasttoken",
        })
    }
}

impl FromStr for Pooling {
    type Err = UnknownPooling;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|pooling| pooling.to_string() == word);
        known.ok_or_else(|| UnknownPooling(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for pooling in Pooling::ALL {
            assert_eq!(pooling.to_string().parse(), Ok(pooling));
        }
        assert!("median".parse::<Pooling>().unwrap_err().to_string().contains("weightedmean"));
    }
}

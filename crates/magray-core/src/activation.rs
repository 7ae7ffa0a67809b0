//! Names the functions between a model's matrices. Computes none of them on tensors.

use std::{fmt, str::FromStr};

/// The function of the feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * Phi(x)` by the error function; what BERT and its kin mean by GELU.
    Gelu,
    /// The approximation of GELU by tanh.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// `x` as it is.
    Identity,
}

/// Every spelling that model files use.
const SPELLINGS: [(&str, Activation); 8] = [
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

/// A word that names no activation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownActivation(pub String);

impl fmt::Display for UnknownActivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown activation '{}': the known are", self.0)?;
        SPELLINGS.iter().try_for_each(|(name, _)| write!(f, " {name}"))
    }
}

impl std::error::Error for UnknownActivation {}

impl FromStr for Activation {
    type Err = UnknownActivation;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let known = SPELLINGS.iter().find(|(name, _)| *name == word);
        known.map(|(_, activation)| *activation).ok_or_else(|| UnknownActivation(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_gelus_are_told_apart() {
        assert_eq!("gelu".parse(), Ok(Activation::Gelu));
        assert_eq!("gelu_pytorch_tanh".parse(), Ok(Activation::GeluTanh));
        assert_eq!("swish".parse(), Ok(Activation::Silu));
    }

    #[test]
    fn an_unknown_activation_lists_the_known() {
        let message = "mish".parse::<Activation>().unwrap_err().to_string();
        assert!(message.contains("'mish'") && message.contains("gelu_new"), "{message}");
    }
}

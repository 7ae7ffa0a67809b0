//! The scores of a formula, for the points that prefetches found.
//! A result that is no finite number is an error, as it is in Qdrant: it would rank nothing.

use super::View;
use crate::filter::{Source, geo, holds};
use crate::types::{Curve, Decay, Expression, Field, Formula, Function};
use crate::{Error, Instant, Payload, Result};
use serde_json::Value;
use std::collections::HashMap;

/// One point, and what the prefetches gave it.
pub(super) struct Scoring<'a, 'v> {
    pub(super) view: &'a View<'v>,
    pub(super) formula: &'a Formula,
    /// By slot, a map for each prefetch.
    pub(super) scores: &'a [HashMap<u32, f32>],
}

struct Subject {
    slot: u32,
    payload: Payload,
}

impl Scoring<'_, '_> {
    pub(super) fn score(&self, slot: u32) -> Result<f32> {
        let subject = Subject { slot, payload: self.view.payload(slot)?.unwrap_or_default() };
        let score = self.evaluate(&self.formula.expression, &subject)?;
        let narrow = score as f32;
        if narrow.is_finite() { Ok(narrow) } else { Err(not_finite(format!("{score} as f32"))) }
    }

    fn evaluate(&self, expression: &Expression, subject: &Subject) -> Result<f64> {
        let of = |expression: &Expression| self.evaluate(expression, subject);
        match expression {
            Expression::Constant(number) => Ok(*number),
            Expression::Field(field) => self.number(field, subject),
            Expression::Score(number, name) => {
                let score = self.scores.get(*number).and_then(|scores| scores.get(&subject.slot));
                let default = || self.formula.defaults.get(name).and_then(Value::as_f64);
                Ok(score.map(|score| f64::from(*score)).or_else(default).unwrap_or(0.0))
            }
            Expression::Condition(condition) => {
                Ok(f64::from(u8::from(holds(condition, self.view, subject.slot, &subject.payload))))
            }
            Expression::Product(factors) => {
                let mut product = 1.0;
                for factor in factors {
                    let factor = of(factor)?;
                    // What comes after a 0 may have no value.
                    if factor == 0.0 {
                        return Ok(factor);
                    }
                    product *= factor;
                }
                Ok(product)
            }
            Expression::Sum(parts) => parts.iter().map(of).sum(),
            Expression::Function(function, of_what) => apply(*function, of(of_what)?),
            Expression::Quotient { left, right, by_zero } => {
                let left = of(left)?;
                if left == 0.0 {
                    return Ok(left);
                }
                match (of(right)?, by_zero) {
                    (0.0, Some(by_zero)) => Ok(*by_zero),
                    (right, _) => finite(left / right, || format!("{left}/{right}")),
                }
            }
            Expression::Power(base, exponent) => {
                let (base, exponent) = (of(base)?, of(exponent)?);
                finite(base.powf(exponent), || format!("{base}^{exponent}"))
            }
            Expression::GeoDistance { origin, to } => {
                let place = self.value(to, subject).as_ref().and_then(geo::place);
                let place = place.ok_or_else(|| expected("geo point", to))?;
                Ok(geo::distance(*origin, place))
            }
            Expression::Time(time) => Ok(seconds(*time)),
            Expression::TimeOf(field) => {
                let time = self.value(field, subject).and_then(|value| Instant::parse(value.as_str()?));
                Ok(seconds(time.ok_or_else(|| expected("datetime", field))?))
            }
            Expression::Decay(decay) => {
                let Decay { curve, x, target, midpoint, scale } = &**decay;
                let distance = (of(x)? - of(target)?).abs();
                Ok(match curve {
                    Curve::Linear => (1.0 - (1.0 - midpoint) / scale * distance).max(0.0),
                    Curve::Exponential => (midpoint.ln() / scale * distance).exp(),
                    Curve::Gauss => (midpoint.ln() / (scale * scale) * distance * distance).exp(),
                })
            }
        }
    }

    fn number(&self, field: &Field, subject: &Subject) -> Result<f64> {
        self.value(field, subject).and_then(|value| value.as_f64()).ok_or_else(|| expected("number", field))
    }

    /// What a field or its default holds. Several values are a list.
    fn value(&self, field: &Field, subject: &Subject) -> Option<Value> {
        let mut found = Vec::new();
        field.path.visit_flat(&subject.payload, &mut |value| found.push(value.clone()));
        if found.is_empty() {
            found = match self.formula.defaults.get(&field.name)? {
                Value::Array(values) => values.clone(),
                value => vec![value.clone()],
            };
        }
        if found.len() > 1 { Some(Value::Array(found)) } else { found.pop() }
    }
}

fn apply(function: Function, x: f64) -> Result<f64> {
    match function {
        Function::Negative => Ok(-x),
        Function::Absolute => Ok(x.abs()),
        Function::Root => finite(x.sqrt(), || format!("√{x}")),
        Function::Exponential => finite(x.exp(), || format!("exp({x})")),
        Function::Log10 => finite(x.log10(), || format!("log10({x})")),
        Function::Ln => finite(x.ln(), || format!("ln({x})")),
    }
}

fn finite(result: f64, what: impl Fn() -> String) -> Result<f64> {
    if result.is_finite() { Ok(result) } else { Err(not_finite(what())) }
}

fn not_finite(what: String) -> Error {
    Error::bad(format!("The expression {what} produced a non-finite number"))
}

fn expected(kind: &str, field: &Field) -> Error {
    Error::bad(format!(
        "Expected {kind} value for {} in the payload and/or in the formula defaults. Add a default, or a filter",
        field.name
    ))
}

fn seconds(time: Instant) -> f64 {
    time.0 as f64 / 1e6
}

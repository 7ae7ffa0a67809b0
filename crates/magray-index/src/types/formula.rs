//! Formulas that score points anew: of the scores of prefetches, of fields, conditions, places and times.
//! Read from the JSON that Qdrant's clients send; refuses what it does not know.

use super::filter::{Condition, GeoPoint};
use super::filter_json;
use super::instant::Instant;
use super::json_path::JsonPath;
use super::point::Payload;
use crate::{Error, Result};
use serde_json::Value;

/// How deep expressions may lie in each other.
const DEPTH_MAX: usize = 32;

/// An expression, and the values of what a point does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// The new score.
    pub expression: Expression,
    /// By the name of a field, or of a score such as `$score[1]`.
    pub defaults: Payload,
}

/// A number that is computed for each point.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// Itself.
    Constant(f64),
    /// The number in a field.
    Field(Field),
    /// The score that a prefetch gave, and its name.
    Score(usize, String),
    /// 1 where it holds, 0 elsewhere.
    Condition(Box<Condition>),
    /// All multiplied.
    Product(Vec<Self>),
    /// All added.
    Sum(Vec<Self>),
    /// A function of one number.
    Function(Function, Box<Self>),
    /// One divided by another.
    Quotient {
        /// Above.
        left: Box<Self>,
        /// Below.
        right: Box<Self>,
        /// The result for a divisor of 0; without it, that is an error.
        by_zero: Option<f64>,
    },
    /// One to the power of another.
    Power(Box<Self>, Box<Self>),
    /// Metres from a place to that of a field.
    GeoDistance {
        /// From here.
        origin: GeoPoint,
        /// To here.
        to: Field,
    },
    /// Seconds since 1970.
    Time(Instant),
    /// Seconds since 1970 of the time in a field.
    TimeOf(Field),
    /// From 1 at the target down to 0.
    Decay(Box<Decay>),
}

/// A field by its name as it was given, under which it has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// As it was given.
    pub name: String,
    /// Where it is.
    pub path: JsonPath,
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// -x
    Negative,
    /// |x|
    Absolute,
    /// The square root.
    Root,
    /// e to the power of x.
    Exponential,
    /// To the base 10.
    Log10,
    /// To the base e.
    Ln,
}

/// How a score falls with the distance from a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Decay {
    /// Its form.
    pub curve: Curve,
    /// The value.
    pub x: Expression,
    /// Where it is 1.
    pub target: Expression,
    /// What it is at the scale's distance; between 0 and 1.
    pub midpoint: f64,
    /// The distance; more than 0.
    pub scale: f64,
}

/// The form of a decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// A line.
    Linear,
    /// An exponential.
    Exponential,
    /// A bell.
    Gauss,
}

impl Formula {
    /// Reads `{"sum": ["$score", {"mult": [0.5, {"key": "tag", "match": {"value": "h1"}}]}]}` and the like.
    pub fn from_json(expression: &Value, defaults: Payload) -> Result<Self> {
        Ok(Self { expression: read(expression, DEPTH_MAX)?, defaults })
    }
}

fn read(value: &Value, depth: usize) -> Result<Expression> {
    let depth = depth.checked_sub(1).ok_or_else(|| Error::bad(format!("a formula lies more than {DEPTH_MAX} deep")))?;
    let fields = match value {
        Value::Number(number) => return Ok(Expression::Constant(number.as_f64().unwrap_or(f64::NAN))),
        Value::String(name) => return variable(name),
        Value::Object(fields) => fields,
        _ => return Err(Error::bad("an expression of a formula is a number, a name or an object")),
    };
    let mut given = fields.iter().filter(|(_, value)| !value.is_null());
    let (Some((kind, inner)), None) = (given.next(), given.next()) else {
        return Ok(Expression::Condition(Box::new(filter_json::condition(value, depth)?)));
    };
    let of = |name: &str| match inner.get(name) {
        None | Some(Value::Null) => Err(Error::bad(format!("{kind} of a formula needs {name}"))),
        Some(value) => read(value, depth),
    };
    let function = |function: Function| Ok(Expression::Function(function, Box::new(read(inner, depth)?)));
    match kind.as_str() {
        "mult" => Ok(Expression::Product(all(inner, kind, depth)?)),
        "sum" => Ok(Expression::Sum(all(inner, kind, depth)?)),
        "neg" => function(Function::Negative),
        "abs" => function(Function::Absolute),
        "sqrt" => function(Function::Root),
        "exp" => function(Function::Exponential),
        "log10" => function(Function::Log10),
        "ln" => function(Function::Ln),
        "div" => Ok(Expression::Quotient {
            left: Box::new(of("left")?),
            right: Box::new(of("right")?),
            by_zero: number(inner, "by_zero_default")?,
        }),
        "pow" => Ok(Expression::Power(Box::new(of("base")?), Box::new(of("exponent")?))),
        "geo_distance" => Ok(Expression::GeoDistance {
            origin: filter_json::place(inner.get("origin"))?,
            to: field(inner.get("to").unwrap_or(&Value::Null))?,
        }),
        "datetime" => {
            let time = inner.as_str().and_then(Instant::parse);
            Ok(Expression::Time(time.ok_or_else(|| Error::bad(format!("{inner} is no date and time")))?))
        }
        "datetime_key" => Ok(Expression::TimeOf(field(inner)?)),
        "lin_decay" => decay(Curve::Linear, inner, depth),
        "exp_decay" => decay(Curve::Exponential, inner, depth),
        "gauss_decay" => decay(Curve::Gauss, inner, depth),
        _ => Ok(Expression::Condition(Box::new(filter_json::condition(value, depth)?))),
    }
}

fn all(value: &Value, kind: &str, depth: usize) -> Result<Vec<Expression>> {
    let parts = value.as_array().ok_or_else(|| Error::bad(format!("{kind} of a formula is a list")))?;
    parts.iter().map(|part| read(part, depth)).collect()
}

/// A field, or `$score`, which is `$score[0]`.
fn variable(name: &str) -> Result<Expression> {
    let Some(rest) = name.strip_prefix("$score") else {
        return Ok(Expression::Field(field(&Value::String(name.to_owned()))?));
    };
    let index = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let number = if rest.is_empty() { Some(0) } else { index.and_then(|index| index.parse().ok()) };
    let number = number.ok_or_else(|| Error::bad(format!("Invalid score pattern: {name}")))?;
    Ok(Expression::Score(number, name.to_owned()))
}

fn field(value: &Value) -> Result<Field> {
    let name = value.as_str().ok_or_else(|| Error::bad("a field of a formula is named by a string"))?;
    Ok(Field { name: name.to_owned(), path: name.parse()? })
}

fn number(value: &Value, name: &str) -> Result<Option<f64>> {
    match value.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(Error::bad(format!("{name} of a formula is a number"))),
        },
    }
}

fn decay(curve: Curve, value: &Value, depth: usize) -> Result<Expression> {
    let part = |name: &str| value.get(name).filter(|value| !value.is_null());
    let x = read(part("x").ok_or_else(|| Error::bad("a decay needs x"))?, depth)?;
    let target = part("target").map_or(Ok(Expression::Constant(0.0)), |target| read(target, depth))?;
    let midpoint = number(value, "midpoint")?.unwrap_or(0.5);
    let scale = number(value, "scale")?.unwrap_or(1.0);
    if !(midpoint > 0.0 && midpoint < 1.0 && scale > 0.0) {
        return Err(Error::bad("a decay has a midpoint between 0 and 1, and a scale above 0"));
    }
    Ok(Expression::Decay(Box::new(Decay { curve, x, target, midpoint, scale })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_understood_is_refused() {
        let formula = |expression: Value| Formula::from_json(&expression, Payload::new());
        for wrong in [
            json!(null),
            json!({"mult": 3}),
            json!({"root": 3}),
            json!("$score[x]"),
            json!("$score[0].a"),
            json!({"div": {"left": 1}}),
            json!({"datetime": "soon"}),
            json!({"lin_decay": {"x": 1, "midpoint": 1}}),
            json!({"geo_distance": {"origin": {"lon": 200, "lat": 0}, "to": "place"}}),
        ] {
            assert!(formula(wrong.clone()).is_err(), "{wrong}");
        }
        let mut deep = json!(1);
        for _ in 0..DEPTH_MAX {
            deep = json!({ "neg": deep });
        }
        assert!(formula(deep).is_err());
        let condition = formula(json!({"key": "a", "match": {"value": 1}, "range": null})).unwrap();
        assert!(matches!(condition.expression, Expression::Condition(_)));
    }
}

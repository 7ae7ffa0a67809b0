//! Filters over ids, vectors and payloads, with the meaning that Qdrant's have.
//! Only says what must hold; evaluation is `crate::filter`.

use super::instant::Instant;
use super::json_path::JsonPath;
use super::point::PointId;
use serde_json::Value;

/// All of `must`, none of `must_not`, at least one of `should` (if there is any), and of `min_should` at least the number it says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// All of them hold.
    pub must: Vec<Condition>,
    /// At least one holds, if there is any.
    pub should: Vec<Condition>,
    /// None of them holds.
    pub must_not: Vec<Condition>,
    /// At least this number of them holds.
    pub min_should: Option<(Vec<Condition>, usize)>,
}

/// One thing that a point meets or does not meet.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// A value under the key passes the test.
    Field {
        /// Where the values are.
        key: JsonPath,
        /// What one of them must pass.
        test: FieldTest,
    },
    /// There is nothing under the key, or only null and empty lists.
    IsEmpty(JsonPath),
    /// There is a null under the key, itself or in a list.
    IsNull(JsonPath),
    /// The id is one of these.
    HasId(Vec<PointId>),
    /// The point has a vector of this name.
    HasVector(String),
    /// One object of the list under the key meets the filter by itself.
    Nested {
        /// Where the list is.
        key: JsonPath,
        /// What one of its objects must meet.
        filter: Filter,
    },
    /// A filter as a condition.
    Filter(Box<Filter>),
}

/// What a value must pass. Lists are tested by element; `ValuesCount` counts them.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldTest {
    /// Equal to a string, an integer or a boolean.
    Value(Value),
    /// Equal to one of these.
    Any(Vec<Value>),
    /// There, and equal to none of these.
    Except(Vec<Value>),
    /// A text that has all words.
    Text(String),
    /// A text that has one of the words.
    TextAny(String),
    /// A text that has the words one after the other.
    Phrase(String),
    /// A text that begins with this, letter by letter.
    Prefix(String),
    /// A text that has this anywhere, letter by letter.
    Substring(String),
    /// A number within bounds.
    Range(Range<f64>),
    /// A date, or date and time, within bounds.
    DatetimeRange(Range<Instant>),
    /// A place inside of a box, without its border.
    GeoBox {
        /// North-west.
        top_left: GeoPoint,
        /// South-east. West of `top_left`: the box crosses the 180th meridian.
        bottom_right: GeoPoint,
    },
    /// A place nearer than this to a centre.
    GeoRadius {
        /// The centre.
        center: GeoPoint,
        /// Metres.
        radius: f64,
    },
    /// A place inside of a polygon, but in none of its holes.
    GeoPolygon {
        /// The outer border.
        exterior: Ring,
        /// The holes.
        interiors: Vec<Ring>,
    },
    /// How many values there are.
    ValuesCount(Range<u64>),
}

/// Bounds; those that are missing bound nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range<T> {
    /// Less than.
    pub lt: Option<T>,
    /// Less than or equal.
    pub lte: Option<T>,
    /// Greater than.
    pub gt: Option<T>,
    /// Greater than or equal.
    pub gte: Option<T>,
}

/// A place on Earth, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeoPoint {
    /// Longitude, -180 to 180.
    pub lon: f64,
    /// Latitude, -90 to 90.
    pub lat: f64,
}

/// A closed line of places.
pub type Ring = Vec<GeoPoint>;

impl<T> Default for Range<T> {
    fn default() -> Self {
        Self { lt: None, lte: None, gt: None, gte: None }
    }
}

impl<T: PartialOrd> Range<T> {
    /// Whether a value is within the bounds.
    pub fn contains(&self, value: &T) -> bool {
        self.lt.as_ref().is_none_or(|bound| value < bound)
            && self.lte.as_ref().is_none_or(|bound| value <= bound)
            && self.gt.as_ref().is_none_or(|bound| value > bound)
            && self.gte.as_ref().is_none_or(|bound| value >= bound)
    }
}

impl Filter {
    /// All points that meet one condition.
    pub fn must(condition: Condition) -> Self {
        Self { must: vec![condition], ..Self::default() }
    }

    /// Both filters must hold.
    pub fn and(self, other: Self) -> Self {
        let both = [self, other].map(|filter| Condition::Filter(Box::new(filter)));
        Self { must: both.into(), ..Self::default() }
    }
}

//! The vectors of a collection by number, as the store has them, and checks of what callers send.
//! Fixed when the collection is created.

use super::dense::normalise;
use crate::store::{Shape, VECTORS_MAX};
use crate::{
    CollectionConfig, DenseConfig, Distance, Error, Point, Result, SparseConfig, Storage, Vector, check_vector,
};
use std::collections::BTreeMap;

/// The longest vector whose products with others are finite.
const LENGTH_MAX: f64 = 1e18;

/// The largest number of 16 bits.
const F16_MAX: f32 = 65_504.0;

pub(crate) struct Schema {
    vectors: Vec<Named>,
}

pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Dense(DenseConfig),
    Multi(DenseConfig),
    Sparse(SparseConfig),
}

impl Schema {
    pub(crate) fn new(config: &CollectionConfig) -> Result<Self> {
        config.check()?;
        let dense = config.dense.iter().map(|(name, config)| {
            let config = config.clone();
            let kind = if config.multi { Kind::Multi(config) } else { Kind::Dense(config) };
            Named { name: name.clone(), kind }
        });
        let sparse = config.sparse.iter();
        let sparse = sparse.map(|(name, config)| Named { name: name.clone(), kind: Kind::Sparse(config.clone()) });
        let vectors: Vec<Named> = dense.chain(sparse).collect();
        if vectors.len() > VECTORS_MAX {
            return Err(Error::bad(format!("{} vectors in a collection: use at most {VECTORS_MAX}", vectors.len())));
        }
        Ok(Self { vectors })
    }

    pub(crate) fn vectors(&self) -> &[Named] {
        &self.vectors
    }

    pub(crate) fn number(&self, name: &str) -> Result<usize> {
        let found = self.vectors.iter().position(|vector| vector.name == name);
        found.ok_or_else(|| Error::bad(format!("Not existing vector name error: {name}")))
    }

    /// The numbers of a vector; `None`: a point has several vectors there, or a sparse one.
    pub(crate) fn dense_dims(&self, number: usize) -> Option<usize> {
        match &self.vectors[number].kind {
            Kind::Dense(config) => Some(config.size),
            Kind::Multi(_) | Kind::Sparse(_) => None,
        }
    }

    pub(crate) fn shape(&self, number: usize) -> Shape {
        match &self.vectors[number].kind {
            Kind::Dense(config) => Shape::Dense { dims: config.size },
            Kind::Multi(config) => Shape::Multi { dims: config.size },
            Kind::Sparse(_) => Shape::Sparse,
        }
    }

    /// Checks a point and brings its vectors into the form that is stored.
    pub(crate) fn prepare(&self, point: &mut Point) -> Result<()> {
        self.prepare_vectors(&mut point.vectors)
    }

    pub(crate) fn prepare_vectors(&self, vectors: &mut BTreeMap<String, Vector>) -> Result<()> {
        vectors.iter_mut().try_for_each(|(name, vector)| self.prepare_vector(name, vector))
    }

    /// Checks a vector of a query, and brings it into the form of stored ones but for its length.
    pub(crate) fn check_query(&self, name: &str, vector: &mut Vector) -> Result<()> {
        self.prepare_vector(name, &mut vector.clone())?;
        if let (Kind::Multi(_), Vector::Dense(values)) = (&self.vectors[self.number(name)?].kind, &mut *vector) {
            *vector = Vector::Multi(vec![std::mem::take(values)]);
        }
        Ok(())
    }

    fn prepare_vector(&self, name: &str, vector: &mut Vector) -> Result<()> {
        check_vector(vector)?;
        match (&self.vectors[self.number(name)?].kind, vector) {
            (Kind::Dense(config), Vector::Dense(values)) => prepare_row(name, config, values),
            (Kind::Multi(config), Vector::Multi(rows)) => {
                rows.iter_mut().try_for_each(|row| prepare_row(name, config, row))
            }
            // Clients send one vector where a list of one is meant.
            (Kind::Multi(config), vector @ Vector::Dense(_)) => {
                let Vector::Dense(values) = vector else { return Ok(()) };
                let mut row = std::mem::take(values);
                prepare_row(name, config, &mut row)?;
                *vector = Vector::Multi(vec![row]);
                Ok(())
            }
            (Kind::Sparse(_), Vector::Sparse { indices, values }) => {
                let mut pairs: Vec<(u32, f32)> = indices.iter().copied().zip(values.iter().copied()).collect();
                pairs.sort_by_key(|(index, _)| *index);
                (*indices, *values) = pairs.into_iter().unzip();
                Ok(())
            }
            _ => Err(Error::bad(format!(
                "Conversion between sparse, dense and multi vectors failed for vector '{name}'"
            ))),
        }
    }
}

fn prepare_row(name: &str, config: &DenseConfig, values: &mut [f32]) -> Result<()> {
    if values.len() != config.size {
        return Err(Error::bad(format!(
            "Vector dimension error: expected dim: {}, got {} for vector '{name}'",
            config.size,
            values.len()
        )));
    }
    if config.distance == Distance::Cosine {
        normalise(values);
    }
    let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > LENGTH_MAX {
        return Err(Error::bad(format!(
            "a vector of length {length:e} is too long: scale vectors below {LENGTH_MAX:e}"
        )));
    }
    if config.storage == Storage::F16 && values.iter().any(|value| value.abs() > F16_MAX) {
        return Err(Error::bad(format!("16-bit values end at {F16_MAX}: scale the vectors, or store 32 bits")));
    }
    Ok(())
}

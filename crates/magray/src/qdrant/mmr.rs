//! The most relevant points that are unlike each other (maximal marginal relevance), chosen of those that a query found.
//! Searches nothing itself.

use magray_index::{Distance, Scored, Vector};

use super::query::Mmr;

const DIVERSITY: f32 = 0.5;

/// Chooses points with their vectors, most relevant first. `distance`: how the vectors are compared; `None` for sparse ones.
pub(crate) fn choose(
    found: Vec<Scored>,
    using: &str,
    distance: Option<Distance>,
    mmr: Mmr,
    limit: usize,
) -> magray_index::Result<Vec<Scored>> {
    let diversity = mmr.diversity.unwrap_or(DIVERSITY);
    if !(0.0..=1.0).contains(&diversity) {
        return Err(magray_index::Error::bad("the diversity of mmr is between 0 and 1"));
    }
    let vector = |at: usize| found[at].vectors.as_ref().and_then(|vectors| vectors.get(using));
    let likeness = |a: usize, b: usize| match (vector(a), vector(b)) {
        (Some(a), Some(b)) => similarity(a, b, distance),
        _ => 0.0,
    };
    let relevance = |at: usize| match distance {
        Some(Distance::Euclid) => -found[at].score * found[at].score,
        Some(Distance::Manhattan) => -found[at].score,
        Some(Distance::Cosine | Distance::Dot) | None => found[at].score,
    };
    let mut pending: Vec<usize> = (0..found.len()).collect();
    // How like each is to the most alike of those that are chosen.
    let mut nearest = vec![f32::NEG_INFINITY; found.len()];
    let mut chosen: Vec<usize> = Vec::new();
    while chosen.len() < limit && !pending.is_empty() {
        let gain = |at: usize| match chosen.is_empty() {
            true => relevance(at),
            false => (1.0 - diversity) * relevance(at) - diversity * nearest[at],
        };
        let best = pending.iter().enumerate().max_by(|(_, a), (_, b)| gain(**a).total_cmp(&gain(**b)));
        let Some((place, _)) = best else { break };
        let next = pending.swap_remove(place);
        for at in &pending {
            nearest[*at] = nearest[*at].max(likeness(*at, next));
        }
        chosen.push(next);
    }
    let mut found: Vec<Option<Scored>> = found.into_iter().map(Some).collect();
    Ok(chosen.into_iter().filter_map(|at| found[at].take()).collect())
}

/// The larger, the more alike.
fn similarity(a: &Vector, b: &Vector, distance: Option<Distance>) -> f32 {
    let rows = |a: &[f32], b: &[f32]| {
        let pairs = a.iter().zip(b);
        match distance {
            Some(Distance::Euclid) => -pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f32>(),
            Some(Distance::Manhattan) => -pairs.map(|(a, b)| (a - b).abs()).sum::<f32>(),
            Some(Distance::Cosine | Distance::Dot) | None => pairs.map(|(a, b)| a * b).sum(),
        }
    };
    match (a, b) {
        (Vector::Dense(a), Vector::Dense(b)) => rows(a, b),
        (Vector::Multi(a), Vector::Multi(b)) => {
            let best = |a: &Vec<f32>| b.iter().map(|b| rows(a, b)).fold(f32::NEG_INFINITY, f32::max);
            a.iter().map(best).sum()
        }
        (Vector::Sparse { indices, values }, Vector::Sparse { indices: others, values: other_values }) => {
            let other = |index| others.iter().position(|known| known == index).map_or(0.0, |at| other_values[at]);
            indices.iter().zip(values).map(|(index, value)| value * other(index)).sum()
        }
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use magray_index::PointId;

    use super::*;

    fn point(id: u64, score: f32, vector: [f32; 2]) -> Scored {
        let vectors = Some(BTreeMap::from([(String::new(), Vector::Dense(vector.to_vec()))]));
        Scored { id: PointId::Number(id), score, payload: None, vectors, order_value: None }
    }

    #[test]
    fn a_copy_of_the_best_comes_after_what_differs() {
        let found = || vec![point(1, 1.0, [1.0, 0.0]), point(2, 1.0, [1.0, 0.0]), point(3, 0.5, [0.5, 0.8])];
        let ids = |diversity| {
            let mmr = Mmr { diversity: Some(diversity), candidates_limit: None };
            let chosen = choose(found(), "", Some(Distance::Dot), mmr, 3)?;
            Ok::<Vec<_>, magray_index::Error>(chosen.iter().map(|point| point.id.to_string()).collect())
        };
        assert_eq!(ids(0.0).unwrap()[2], "3");
        assert_eq!(ids(0.8).unwrap()[1], "3");
        assert!(ids(1.5).is_err());
    }
}

//! Places on Earth: distances, boxes, polygons, as Qdrant computes them.
//! Reads places out of payloads; an object without two finite numbers is none.

use crate::{GeoPoint, Ring};
use serde_json::Value;

/// Metres, as the IUGG recommends.
const EARTH_RADIUS: f64 = 6_371_008.8;

/// `{"lon": .., "lat": ..}`.
pub(crate) fn place(value: &Value) -> Option<GeoPoint> {
    let degrees = |name| value.get(name)?.as_f64().filter(|degrees| degrees.is_finite());
    Some(GeoPoint { lon: degrees("lon")?, lat: degrees("lat")? })
}

/// Metres along the surface, by the haversine formula.
pub(crate) fn distance(one: GeoPoint, other: GeoPoint) -> f64 {
    let (lat_one, lat_other) = (one.lat.to_radians(), other.lat.to_radians());
    let half = |a: f64, b: f64| ((b - a) / 2.0).sin().powi(2);
    let a =
        half(lat_one, lat_other) + lat_one.cos() * lat_other.cos() * half(one.lon.to_radians(), other.lon.to_radians());
    2.0 * a.sqrt().asin() * EARTH_RADIUS
}

/// Inside of a box, without its border. A box whose left side is east of its right side crosses the 180th meridian.
pub(crate) fn in_box(place: GeoPoint, top_left: GeoPoint, bottom_right: GeoPoint) -> bool {
    let (right_of_left, left_of_right) = (place.lon > top_left.lon, place.lon < bottom_right.lon);
    let is_between =
        if top_left.lon > bottom_right.lon { right_of_left || left_of_right } else { right_of_left && left_of_right };
    is_between && place.lat < top_left.lat && place.lat > bottom_right.lat
}

/// Inside of the outer ring, without its border, and in none of the holes, with theirs.
pub(crate) fn in_polygon(place: GeoPoint, exterior: &Ring, interiors: &[Ring]) -> bool {
    in_ring(place, exterior, false) && !interiors.iter().any(|hole| in_ring(place, hole, true))
}

/// Counts how often a line from the place crosses the ring.
fn in_ring(place: GeoPoint, ring: &Ring, border_counts: bool) -> bool {
    let (x, y) = (place.lat, place.lon);
    let mut is_inside = false;
    for pair in ring.windows(2) {
        let (a, b) = (pair[1], pair[0]);
        let is_on_line = y * (a.lat - b.lat) + a.lon * (b.lat - x) + b.lon * (x - a.lat) == 0.0;
        if is_on_line && (a.lat - x) * (b.lat - x) <= 0.0 && (a.lon - y) * (b.lon - y) <= 0.0 {
            return border_counts;
        }
        if (a.lon > y) != (b.lon > y) && x < (b.lat - a.lat) * (y - a.lon) / (b.lon - a.lon) + a.lat {
            is_inside = !is_inside;
        }
    }
    is_inside
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(lon: f64, lat: f64) -> GeoPoint {
        GeoPoint { lon, lat }
    }

    #[test]
    fn moscow_is_2500_km_from_london() {
        let metres = distance(at(37.6173, 55.7558), at(-0.1278, 51.5074));
        assert!((2_400_000.0..2_600_000.0).contains(&metres), "{metres}");
        assert_eq!(distance(at(1.0, 2.0), at(1.0, 2.0)), 0.0);
    }

    #[test]
    fn a_box_may_cross_the_180th_meridian() {
        assert!(in_box(at(179.0, 0.0), at(170.0, 10.0), at(-170.0, -10.0)));
        assert!(!in_box(at(0.0, 0.0), at(170.0, 10.0), at(-170.0, -10.0)));
        assert!(!in_box(at(0.0, 0.0), at(0.0, 10.0), at(5.0, -10.0)));
    }

    #[test]
    fn holes_and_borders_are_outside() {
        let square =
            |half: f64| vec![at(-half, -half), at(half, -half), at(half, half), at(-half, half), at(-half, -half)];
        let (outer, holes) = (square(10.0), [square(2.0)]);
        assert!(in_polygon(at(5.0, 5.0), &outer, &holes));
        assert!(!in_polygon(at(0.0, 0.0), &outer, &holes));
        assert!(!in_polygon(at(2.0, 0.0), &outer, &holes));
        assert!(!in_polygon(at(10.0, 0.0), &outer, &holes));
        assert!(!in_polygon(at(11.0, 0.0), &outer, &holes));
    }
}

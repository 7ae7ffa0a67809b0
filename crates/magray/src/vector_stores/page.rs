//! Pages of lists: which part of all items a client asks for.
//! Items are in the order of their ids, which is that of their making.

use magray_index::{Error, Result};
use serde::Deserialize;

use super::{answers::Page, attached::Status};

/// Which part of a list is wanted.
#[derive(Clone, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// How many at most.
    #[param(minimum = 1)]
    limit: Option<usize>,
    order: Option<Order>,
    /// Those that come after this id.
    after: Option<String>,
    /// Those that come before this id.
    before: Option<String>,
    /// Files of a store with this status.
    pub(crate) filter: Option<Status>,
    /// Files that were uploaded for this.
    pub(crate) purpose: Option<String>,
}

/// The newest first, unless the oldest is wanted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    #[default]
    Desc,
}

/// How many items a page has: without a wish, and at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageSize {
    pub(crate) usual: usize,
    pub(crate) most: usize,
}

impl ListQuery {
    /// A page of items, of which the oldest comes first.
    pub(crate) fn page<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> &str, size: PageSize) -> Result<Page<T>> {
        let limit = self.limit.unwrap_or(size.usual);
        if !(1..=size.most).contains(&limit) {
            return Err(Error::bad(format!("limit is {limit}: use 1 to {}", size.most)));
        }
        if self.order.unwrap_or_default() == Order::Desc {
            items.reverse();
        }
        let place = |wanted: &str| items.iter().position(|item| id(item) == wanted);
        let unknown = |wanted: &str| Error::bad(format!("'{wanted}' is not in the list"));
        let start = match &self.after {
            Some(after) => place(after).ok_or_else(|| unknown(after))? + 1,
            None => 0,
        };
        let end = match &self.before {
            Some(before) => place(before).ok_or_else(|| unknown(before))?,
            None => items.len(),
        };
        let end = end.max(start);
        // Before an id come those that are nearest to it.
        let taken = match (&self.after, &self.before) {
            (None, Some(_)) => end.saturating_sub(limit)..end,
            _ => start..end.min(start + limit),
        };
        let has_more = taken.len() < end - start;
        items.truncate(taken.end);
        Ok(Page::new(items.split_off(taken.start), id, has_more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(query: &str) -> Result<(String, bool)> {
        let query: ListQuery = serde_urlencoded::from_str(query).unwrap();
        let items = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let page = query.page(items, |item| item, PageSize { usual: 3, most: 4 })?;
        Ok((page.data.concat(), page.has_more))
    }

    #[test]
    fn pages_go_on_where_the_last_one_ended() {
        let check = |query: &str, items: &str, has_more| {
            assert_eq!(ids(query).unwrap(), (items.to_owned(), has_more), "{query}");
        };
        check("", "dcb", true);
        check("after=b", "a", false);
        check("order=asc&limit=4", "abcd", false);
        check("order=asc&limit=2&after=a", "bc", true);
        check("order=asc&before=d&limit=2", "bc", true);
        check("order=asc&after=a&before=c", "b", false);
        check("order=asc&after=d", "", false);
        for wrong in ["limit=0", "limit=5", "after=x", "before=x"] {
            assert!(ids(wrong).is_err(), "{wrong}");
        }
        assert!(serde_urlencoded::from_str::<ListQuery>("order=up").is_err());
    }
}

//! Puts another file in the place of a collection's: one of a snapshot, or one with other vectors and the same points.
//! Loses no change: those that come meanwhile wait, and are refused if they were meant for what was replaced.

use super::files::check_name;
use super::{Collections, REPLACED};
use crate::store::io_failure;
use crate::{Collection, CollectionConfig, Error, PayloadSelector, Point, Result, ScrollRequest, VectorSelector};
use std::fs;
use std::path::Path;

/// Points that are copied at a time.
const PORTION: usize = 256;

impl Collections {
    /// Adds and removes vectors of a collection by other settings for them. All points are written anew.
    pub fn change_vectors(
        &self,
        collection: &str,
        change: impl FnOnce(&mut CollectionConfig) -> Result<()>,
    ) -> Result<()> {
        let name = self.get(collection)?.name().to_owned();
        self.replace(&name, |folder, old| {
            let old = old.ok_or_else(|| Error::no_collection(&name))?;
            let mut config = old.config().as_ref().clone();
            change(&mut config)?;
            if let Some(what) = old.info()?.damage.into_iter().next() {
                return Err(Error::Corrupt { collection: name.clone(), what });
            }
            Collection::create(folder, &name, &config, self.access)?;
            let new = Collection::open(folder, &name, self.access, self.hardware.clone())?;
            copy_points(old, &new)
        })
    }

    /// Puts what `fill` makes in the place of a collection, in one step, or makes a new one of it. `fill` is told the
    /// collection that is replaced, which no one changes meanwhile. Threads that have it read it to their end.
    pub(super) fn replace(
        &self,
        collection: &str,
        fill: impl FnOnce(&Path, Option<&Collection>) -> Result<()>,
    ) -> Result<()> {
        check_name("a collection", collection)?;
        let _changing = self.begin()?;
        let known = self.names().open.get(collection).cloned();
        let held = known.as_ref().map(|known| known.hold()).transpose()?;
        let old = self.folder_of(collection);
        // Should the process end before the new one is in its place, the next one puts this back.
        let gone = old.with_file_name(format!("{REPLACED}{collection}"));
        let (mut leaving, mut is_moved) = (None, false);
        let placed = self.put_in_place(collection, |folder| {
            fill(folder, known.as_deref())?;
            let _ = fs::remove_dir_all(&gone);
            // From here to the end of this function the name may lead to either file.
            leaving = known.as_ref().map(|known| known.leave());
            match fs::rename(&old, &gone) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                renamed => {
                    is_moved = renamed.is_ok();
                    renamed.map_err(|error| io_failure("replacing a collection", &error))
                }
            }
        });
        if let Err(error) = placed {
            if is_moved {
                self.put_back(&gone, &old)?;
            }
            return Err(error);
        }
        if let Some(known) = &known {
            known.retire();
        }
        let left = self.left_folder(collection);
        let left = if fs::rename(&gone, &left).is_ok() { left } else { gone };
        match leaving {
            Some(leaving) => leaving.arrive(&left),
            None => drop(fs::remove_dir_all(&left)),
        }
        drop(held);
        Ok(())
    }

    /// Undoes a replacement that failed half way.
    fn put_back(&self, gone: &Path, old: &Path) -> Result<()> {
        let new = old.with_file_name(format!(".new-{}", old.file_name().unwrap_or_default().display()));
        let renamed = match fs::rename(old, new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => fs::rename(gone, old),
        };
        renamed.map_err(|error| io_failure("putting a collection back", &error))
    }
}

fn copy_points(old: &Collection, new: &Collection) -> Result<()> {
    let config = new.config();
    let mut request = ScrollRequest {
        limit: PORTION,
        with_payload: PayloadSelector::All,
        with_vectors: VectorSelector::All,
        ..ScrollRequest::default()
    };
    loop {
        let page = old.scroll(&request)?;
        let points = page.points.into_iter().map(|record| {
            let mut vectors = record.vectors.unwrap_or_default();
            vectors.retain(|name, _| config.dense.contains_key(name) || config.sparse.contains_key(name));
            Point { id: record.id, vectors, payload: record.payload.unwrap_or_default() }
        });
        let points: Vec<Point> = points.collect();
        if !points.is_empty() {
            new.upsert(points)?;
        }
        match page.next {
            Some(next) => request.offset = Some(next),
            None => return Ok(()),
        }
    }
}

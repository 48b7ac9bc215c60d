//! What folders are called before those who need not know where they lie: the ends of their paths.

/// The names of some folders, by their paths.
pub(crate) struct Names(Vec<(String, String)>);

impl Names {
    /// The shortest ends of `paths` that tell each of them from the others. The first part of a path is never
    /// shown, however alike two of them are: those are numbered.
    pub(crate) fn of(paths: impl IntoIterator<Item = String>) -> Self {
        let paths: Vec<String> = paths.into_iter().collect();
        let mut names: Vec<(String, String)> = Vec::with_capacity(paths.len());
        for path in &paths {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            let end = |length: usize| parts[parts.len().saturating_sub(length)..].join("/");
            let alone = |name: &str| {
                let same = |other: &&String| *other == path || ends_with(other, name);
                paths.iter().filter(same).all(|other| other == path)
            };
            let most = parts.len().saturating_sub(1).max(1);
            let name = (1..=most).map(end).find(|name| alone(name));
            let name = name.unwrap_or_else(|| end(1));
            let name = if name.is_empty() {
                "folder".to_owned()
            } else {
                name
            };
            let taken = |name: &str| names.iter().any(|(of, taken)| taken == name && of != path);
            let numbered = (2..).map(|n| format!("{name} ({n})"));
            let name = std::iter::once(name.clone())
                .chain(numbered)
                .find(|name| !taken(name))
                .unwrap_or(name);
            names.push((path.clone(), name));
        }
        Self(names)
    }

    /// The name of the folder at `path`. One that is not served any more has the end of its path.
    pub(crate) fn name(&self, path: &str) -> String {
        let known = self.0.iter().find(|(of, _)| of == path);
        let end = || path.rsplit('/').find(|part| !part.is_empty());
        known.map_or_else(|| end().unwrap_or_default().to_owned(), |(_, name)| name.clone())
    }
}

/// Whether whole parts at the end of `path` are `name`.
fn ends_with(path: &str, name: &str) -> bool {
    let path = path.trim_end_matches('/');
    path.strip_suffix(name)
        .is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str]) -> Vec<String> {
        let names = Names::of(paths.iter().map(|path| (*path).to_owned()));
        paths.iter().map(|path| names.name(path)).collect()
    }

    #[test]
    fn a_folder_is_called_by_as_much_of_its_end_as_tells_it_from_the_others() {
        assert_eq!(names(&["/srv/disk1/Films", "/srv/Music/"]), ["Films", "Music"]);
        assert_eq!(
            names(&["/srv/disk1/Films", "/srv/disk2/Films", "/mnt/me/myFilms"]),
            ["disk1/Films", "disk2/Films", "myFilms"]
        );
        // Where only the first part tells them apart, it is still nobody's business.
        assert_eq!(names(&["/a/Films", "/b/Films"]), ["Films", "Films (2)"]);
        assert_eq!(names(&["/", "/Films"]), ["folder", "Films"]);
        assert_eq!(names(&["/a/Films", "/a/Films"]), ["Films", "Films"]);
    }

    #[test]
    fn what_is_not_served_any_more_is_named_by_its_end() {
        assert_eq!(Names::of([]).name("/srv/old/Films"), "Films");
    }
}

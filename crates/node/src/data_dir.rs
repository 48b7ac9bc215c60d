//! The data directory: one node's own place on disk, locked for one process, private to its owner.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ether_types::NodeId;

/// Bytes of a secret that ether makes for itself.
const SECRET: usize = 32;

/// An open, locked data directory. The lock is held until this is dropped or the process ends.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another server uses it.
    #[error("{} is used by another ether server: stop that one, or give this one its own --data-dir", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It cannot be made, read or written.
    #[error("{} cannot be used: {source}. Check that it can be written, or name another with --data-dir", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A secret can be read by others.
    #[error("{} can be read by others (mode {mode:04o}): run `chmod 600` on it, or delete it to have a new one made", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file that ether keeps there has been changed into something else.
    #[error("{} is not what ether wrote there: restore it, or delete it to have a new one made", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers")]
    NoRandomness,
}

/// Where a server keeps its data when nothing else is said: `$XDG_DATA_HOME/ether`, else `~/.local/share/ether`.
/// `None` where neither variable is set.
pub fn default_data_dir() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let base = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("ether"))
}

impl DataDir {
    /// Makes the directory where it is missing (mode 0700) and locks it.
    ///
    /// # Errors
    /// [`DataDirError`]; nothing of what was there is changed.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| DataDirError::Io { path, source }
        };
        if !path.is_dir() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(io(path))?;
        }
        let path = path.canonicalize().map_err(io(path))?;
        let name = path.join("lock");
        let mut options = File::options();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&name)
            .map_err(io(&name))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(DataDirError::Locked { path }),
            Err(TryLockError::Error(source)) => Err(DataDirError::Io { path: name, source }),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory inside, made where it is missing (mode 0700).
    ///
    /// # Errors
    /// [`DataDirError::Io`].
    pub fn directory(&self, name: &str) -> Result<PathBuf, DataDirError> {
        let path = self.path.join(name);
        if !path.is_dir() {
            let made = DirBuilder::new().mode(0o700).create(&path);
            made.map_err(|source| DataDirError::Io {
                path: path.clone(),
                source,
            })?;
        }
        Ok(path)
    }

    /// The owner's token, made at the first start.
    ///
    /// # Errors
    /// [`DataDirError`] where the file can be read by others or is not a token.
    pub fn owner_token(&self) -> Result<String, DataDirError> {
        let path = self.path.join("owner-token");
        let token = self.kept(&path, || Ok(hex(&random()?)))?;
        let token = token.trim_ascii();
        let fits = (32..=256).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        String::from_utf8(token.to_vec())
            .ok()
            .filter(|_| fits)
            .ok_or(DataDirError::Damaged { path })
    }

    /// The key that signs grants, made at the first start.
    ///
    /// # Errors
    /// [`DataDirError`] where the file can be read by others or is not a key.
    pub fn grant_key(&self) -> Result<[u8; SECRET], DataDirError> {
        let path = self.path.join("grant-key");
        let key = self.kept(&path, || Ok(random()?.to_vec()))?;
        key.try_into().map_err(|_| DataDirError::Damaged { path })
    }

    /// This node's durable identity, made at the first start.
    ///
    /// # Errors
    /// [`DataDirError`] where the file is not an identity.
    pub fn node_id(&self) -> Result<NodeId, DataDirError> {
        let path = self.path.join("node-id");
        let make = || {
            NodeId::random()
                .map(|id| id.to_string().into_bytes())
                .map_err(|_| DataDirError::NoRandomness)
        };
        let text = self.kept(&path, make)?;
        let text = String::from_utf8(text).ok();
        text.and_then(|t| NodeId::new(t.trim()).ok())
            .ok_or(DataDirError::Damaged { path })
    }

    /// The content of a private file, made and synced first where it is missing.
    fn kept(
        &self,
        path: &Path,
        make: impl FnOnce() -> Result<Vec<u8>, DataDirError>,
    ) -> Result<Vec<u8>, DataDirError> {
        let io = |source| DataDirError::Io {
            path: path.to_owned(),
            source,
        };
        match read_private(path) {
            Err(DataDirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let content = make()?;
        let part = path.with_extension("part");
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&part)
            .map_err(io)?;
        file.write_all(&content)
            .and_then(|()| file.sync_all())
            .map_err(io)?;
        std::fs::rename(&part, path).map_err(io)?;
        // The name is only safe once the directory is.
        File::open(&self.path)
            .and_then(|dir| dir.sync_all())
            .map_err(io)?;
        Ok(content)
    }
}

fn read_private(path: &Path) -> Result<Vec<u8>, DataDirError> {
    let io = |source| DataDirError::Io {
        path: path.to_owned(),
        source,
    };
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(no_follow.cast_signed())
        .open(path)
        .map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(DataDirError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let mut content = Vec::new();
    file.take(4096).read_to_end(&mut content).map_err(io)?;
    Ok(content)
}

fn random() -> Result<[u8; SECRET], DataDirError> {
    let mut bytes = [0; SECRET];
    getrandom::fill(&mut bytes).map_err(|_| DataDirError::NoRandomness)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .flat_map(|b| format!("{b:02x}").into_bytes())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er");
        let data = DataDir::open(&path).unwrap();
        let (token, key, node) = (
            data.owner_token().unwrap(),
            data.grant_key().unwrap(),
            data.node_id().unwrap(),
        );
        assert_eq!(token.len(), 64);
        let mode = |p: &Path| std::fs::metadata(p).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("owner-token"))), (0o700, 0o600));
        drop(data);
        let again = DataDir::open(&path).unwrap();
        assert_eq!(
            (again.owner_token().unwrap(), again.grant_key().unwrap()),
            (token, key)
        );
        assert_eq!(again.node_id().unwrap(), node);
    }

    #[test]
    fn a_second_server_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let _first = DataDir::open(dir.path()).unwrap();
        let second = DataDir::open(dir.path()).unwrap_err();
        assert!(matches!(second, DataDirError::Locked { .. }), "{second}");
    }

    #[test]
    fn an_exposed_or_damaged_secret_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let token = dir.path().join("owner-token");
        std::fs::write(&token, "x".repeat(40)).unwrap();
        std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
        let exposed = data.owner_token().unwrap_err();
        assert!(
            matches!(exposed, DataDirError::Exposed { mode: 0o644, .. }),
            "{exposed}"
        );
        std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(data.owner_token().unwrap(), "x".repeat(40));
        std::fs::write(&token, "short").unwrap();
        assert!(matches!(data.owner_token(), Err(DataDirError::Damaged { .. })));
        assert_eq!(std::fs::read_to_string(&token).unwrap(), "short");
        std::fs::remove_file(&token).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &token).unwrap();
        assert!(data.owner_token().is_err());
    }
}

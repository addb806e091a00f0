//! Code that is generic over its caller, which is a client, a local client or a mock.

use crate::common::{LIMIT, pair};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use trunkline::{Bytes, CallError, CallOptions, Context, PollerIndex, Status, block_on};

/// An application error type.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Refusal {
    /// The store is full.
    Full(u32),
}

/// Keys and values.
#[trunkline::service]
pub(crate) trait Store {
    /// Returns the value of a key.
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status>;
    /// Sets a value. A call of this method has no context argument.
    async fn put(&self, cx: &Context, key: String, value: Bytes) -> Result<u32, Refusal>;
    /// Returns the number of keys.
    async fn count(&self) -> u32;
    /// Notifies the store that a key is no longer needed.
    #[oneway]
    async fn forget(&self, key: String);
}

/// Maximum number of keys in the test's server.
const MOST: usize = 2;

#[derive(Default)]
struct Memory(Mutex<BTreeMap<String, Bytes>>);

impl Memory {
    fn set(&self, key: String, value: Bytes) -> Result<u32, Refusal> {
        let mut all = self.0.lock().unwrap();
        if all.len() >= MOST {
            return Err(Refusal::Full(u32::try_from(MOST).unwrap()));
        }
        all.insert(key, value);
        Ok(u32::try_from(all.len()).unwrap())
    }
}

impl Store for Memory {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        Ok(self.0.lock().unwrap().get(&key).cloned())
    }
    async fn put(&self, _: &Context, key: String, value: Bytes) -> Result<u32, Refusal> {
        self.set(key, value)
    }
    async fn count(&self) -> u32 {
        u32::try_from(self.0.lock().unwrap().len()).unwrap()
    }
    async fn forget(&self, key: String) {
        self.0.lock().unwrap().remove(&key);
    }
}

/// A mock without a node.
#[derive(Default)]
struct Mock {
    store: Memory,
    is_away: bool,
}

impl StoreCalls for Mock {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        if self.is_away {
            Err(Status::unavailable("away"))
        } else {
            Ok(self.store.0.lock().unwrap().get(&key).cloned())
        }
    }
    async fn put(&self, key: String, value: Bytes) -> Result<u32, CallError<Refusal>> {
        self.store.set(key, value).map_err(CallError::Handler)
    }
    async fn count(&self) -> Result<u32, Status> {
        Ok(u32::try_from(self.store.0.lock().unwrap().len()).unwrap())
    }
    async fn forget(&self, key: String) -> Result<(), Status> {
        self.store.0.lock().unwrap().remove(&key);
        Ok(())
    }
}

/// A mock whose futures are not `Send`.
#[derive(Default)]
struct LocalMock(RefCell<Vec<String>>);

impl LocalStoreCalls for LocalMock {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        self.0.borrow_mut().push(key);
        Ok(None)
    }
    async fn put(&self, key: String, _: Bytes) -> Result<u32, CallError<Refusal>> {
        self.0.borrow_mut().push(key);
        Err(CallError::Handler(Refusal::Full(0)))
    }
    async fn count(&self) -> Result<u32, Status> {
        Ok(0)
    }
    async fn forget(&self, _: String) -> Result<(), Status> {
        Ok(())
    }
}

/// Copies a value. The future may run on any thread.
async fn copy<S: StoreCalls>(store: &S, from: &str, to: &str) -> Result<u32, CallError<Refusal>> {
    let value = store.get(from.to_owned()).await?.ok_or_else(|| Status::not_found(from))?;
    store.put(to.to_owned(), value).await
}

/// Copies a value. The future stays on one thread.
async fn copy_here(store: &impl LocalStoreCalls, from: &str, to: &str) -> Result<u32, CallError<Refusal>> {
    let value = store.get(from.to_owned()).await?.ok_or_else(|| Status::not_found(from))?;
    store.put(to.to_owned(), value).await
}

/// Requires that the future of generic code is `Send`.
fn is_send<F: Future + Send>(future: F) -> F {
    future
}

#[test]
fn generic_code_works_with_client_and_with_mock() {
    let (server, caller) = pair(StoreServer::new(Memory::default()));
    let client = StoreClient::connect(&caller, server.local_address()).unwrap();
    let mock = Mock::default();
    block_on(client.put("a".into(), b"1"[..].into())).unwrap();
    block_on(StoreCalls::put(&mock, "a".into(), b"1"[..].into())).unwrap();
    let outcomes = |first, second, third| (first, second, third);
    let of_client = outcomes(
        block_on(is_send(copy(&client, "a", "b"))),
        block_on(copy(&client, "x", "b")),
        block_on(copy(&client, "a", "c")),
    );
    let of_mock = outcomes(
        block_on(is_send(copy(&mock, "a", "b"))),
        block_on(copy(&mock, "x", "b")),
        block_on(copy(&mock, "a", "c")),
    );
    assert_eq!(of_client, of_mock);
    assert_eq!((of_mock.0, of_mock.2), (Ok(2), Err(CallError::Handler(Refusal::Full(2)))));
    block_on(StoreCalls::forget(&client, "b".into())).unwrap();
    assert_eq!(block_on(StoreCalls::count(&mock)), Ok(2));
    let away = Mock { is_away: true, ..mock };
    assert!(
        matches!(block_on(copy(&away, "a", "b")), Err(CallError::Status(status)) if status.message() == "away")
    );
}

#[test]
fn generic_code_works_with_client_mock_and_local_client() {
    let (server, caller) = pair(StoreServer::new(Memory::default()));
    let address = server.local_address();
    let client = StoreClient::connect(&caller, address).unwrap();
    block_on(client.put("a".into(), b"1"[..].into())).unwrap();
    assert_eq!(block_on(copy_here(&client, "a", "b")), Ok(2), "a client");
    let mock = Mock::default();
    assert!(block_on(copy_here(&mock, "a", "b")).is_err(), "a mock for any thread");
    let local = LocalMock::default();
    assert!(
        block_on(copy_here(&local, "a", "b")).is_err() && local.0.borrow().len() == 1,
        "one for this thread"
    );
    let on_poller = caller.run_on(PollerIndex(0), move |context| async move {
        let local = StoreLocal::connect(&context, address).unwrap().with_timeout(LIMIT);
        copy_here(&local, "a", "c").await
    });
    assert_eq!(block_on(on_poller), Ok(Err(CallError::Handler(Refusal::Full(2)))), "a client of a poller");
    let options = CallOptions::new();
    assert_eq!(
        block_on(client.with(&options).count()),
        Ok(2),
        "own functions come before those of the trait"
    );
}

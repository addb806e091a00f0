use trunkline::{Bytes, Status};
/// Keys and values.
pub trait Kv: 'static {
    /// The value of a key.
    fn get(
        &self,
        key: String,
    ) -> impl ::core::future::Future<Output = Result<Option<Bytes>, Status>>;
    /// Sets a value.
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<Output = Result<(), Status>>;
    /// How many keys there are.
    fn count(&self) -> impl ::core::future::Future<Output = u64>;
    /// The key will not be needed soon.
    fn forget(
        &self,
        r#type: u8,
        key: String,
    ) -> impl ::core::future::Future<Output = ()>;
}
mod __kv_names {
    pub(super) static SERVICE: ::trunkline::stub::ServiceName = ::trunkline::stub::ServiceName {
        name: "golden.Kv",
        version: 2u32,
        hash: 2274913251127523067u64,
    };
    pub(super) static GET: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "get",
        hash: 3086514586827093811u64,
    };
    pub(super) static PUT: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "put",
        hash: 10088421237227746178u64,
    };
    pub(super) static COUNT: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "count",
        hash: 14109536049692703384u64,
    };
    pub(super) static FORGET: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
        service: &SERVICE,
        name: "forget",
        hash: 3095591332080242272u64,
    };
}
/// A server of [`Kv`], to pass to `NodeBuilder::serve`.
#[derive(Debug)]
pub struct KvServer(::trunkline::stub::Service);
impl KvServer {
    /// A server with one handler per poller. `make` runs on each poller's thread, so a handler
    /// need not be `Send`.
    #[must_use]
    pub fn new<T: Kv>(
        make: impl Fn() -> T + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self {
        Self::with_context(move |_| make())
    }
    /// Like `new`; `make` also receives the poller's context, with which handlers create local clients.
    #[must_use]
    pub fn with_context<T: Kv>(
        make: impl Fn(
            &::trunkline::PollerContext,
        ) -> T + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self {
        Self(
            ::trunkline::stub::Service::new(
                &__kv_names::SERVICE,
                move |context, methods| {
                    let handler = ::std::rc::Rc::new(make(context));
                    methods
                        .add(
                            &__kv_names::GET,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (key,): (String,) = __request.arguments()?;
                                        let __replier = __request.replier();
                                        let __value = Kv::get(&*__handler, key).await?;
                                        __replier.optional_bytes(__value)
                                    }
                                }
                            },
                        );
                    methods
                        .add(
                            &__kv_names::PUT,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (key,): (String,) = __request.arguments()?;
                                        let __replier = __request.replier();
                                        let value = __request.into_body();
                                        let __value = Kv::put(&*__handler, key, value).await?;
                                        __replier.value(&__value)
                                    }
                                }
                            },
                        );
                    methods
                        .add(
                            &__kv_names::COUNT,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (): () = __request.arguments()?;
                                        let __replier = __request.replier();
                                        let __value = Kv::count(&*__handler).await;
                                        __replier.value(&__value)
                                    }
                                }
                            },
                        );
                    methods
                        .add(
                            &__kv_names::FORGET,
                            {
                                let handler = ::std::rc::Rc::clone(&handler);
                                move |__request: ::trunkline::stub::Request| {
                                    let __handler = ::std::rc::Rc::clone(&handler);
                                    async move {
                                        let (r#type, key): (u8, String) = __request.arguments()?;
                                        let __replier = __request.replier();
                                        let __value = Kv::forget(&*__handler, r#type, key).await;
                                        __replier.value(&__value)
                                    }
                                }
                            },
                        );
                    let _ = (handler, methods);
                },
            ),
        )
    }
}
impl ::core::convert::From<KvServer> for ::trunkline::stub::Service {
    fn from(server: KvServer) -> Self {
        server.0
    }
}
/// A client of [`Kv`] for any thread and any executor. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct KvClient {
    channel: ::trunkline::Channel,
}
impl KvClient {
    /// A client of the node that listens at `server`. The first call connects.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::Node,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::Channel>::connect(from, server)?,
        })
    }
    /// The same client with this time limit for each call, in place of 10 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// The value of a key.
    pub async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        let __call = self
            .channel
            .call(&__kv_names::GET, &(key,), ::trunkline::Bytes::new());
        let __value = __call.await?.optional_bytes()?;
        ::core::result::Result::Ok(__value)
    }
    /// Sets a value.
    pub async fn put(&self, key: String, value: Bytes) -> Result<(), Status> {
        let __call = self.channel.call(&__kv_names::PUT, &(key,), value);
        let __value = __call.await?.value()?;
        ::core::result::Result::Ok(__value)
    }
    /// How many keys there are.
    pub async fn count(&self) -> ::core::result::Result<u64, ::trunkline::Status> {
        let __call = self
            .channel
            .call(&__kv_names::COUNT, &(), ::trunkline::Bytes::new());
        let __value = __call.await?.value()?;
        ::core::result::Result::Ok(__value)
    }
    /// The key will not be needed soon.
    pub async fn forget(
        &self,
        r#type: u8,
        key: String,
    ) -> ::core::result::Result<(), ::trunkline::Status> {
        let __call = self
            .channel
            .send(&__kv_names::FORGET, &(r#type, key), ::trunkline::Bytes::new());
        __call.await?;
        ::core::result::Result::Ok(())
    }
}
/// A client of [`Kv`] for tasks on one poller; its calls stay on that thread.
#[derive(Debug, Clone)]
pub struct KvLocal {
    channel: ::trunkline::LocalChannel,
}
impl KvLocal {
    /// A client of the node that listens at `server`. The first call connects.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::PollerContext,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::LocalChannel>::connect(from, server)?,
        })
    }
    /// The same client with this time limit for each call, in place of 10 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// The value of a key.
    pub async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        let __call = self
            .channel
            .call(&__kv_names::GET, &(key,), ::trunkline::Bytes::new());
        let __value = __call.await?.optional_bytes()?;
        ::core::result::Result::Ok(__value)
    }
    /// Sets a value.
    pub async fn put(&self, key: String, value: Bytes) -> Result<(), Status> {
        let __call = self.channel.call(&__kv_names::PUT, &(key,), value);
        let __value = __call.await?.value()?;
        ::core::result::Result::Ok(__value)
    }
    /// How many keys there are.
    pub async fn count(&self) -> ::core::result::Result<u64, ::trunkline::Status> {
        let __call = self
            .channel
            .call(&__kv_names::COUNT, &(), ::trunkline::Bytes::new());
        let __value = __call.await?.value()?;
        ::core::result::Result::Ok(__value)
    }
    /// The key will not be needed soon.
    pub async fn forget(
        &self,
        r#type: u8,
        key: String,
    ) -> ::core::result::Result<(), ::trunkline::Status> {
        let __call = self
            .channel
            .send(&__kv_names::FORGET, &(r#type, key), ::trunkline::Bytes::new());
        __call.await?;
        ::core::result::Result::Ok(())
    }
}
/// Passed through.
pub fn other() {}

use trunkline::stub::Stream;
use trunkline::{Bytes, Status};
/// Keys and values.
#[allow(dead_code)]
pub trait Kv: 'static {
    /// Sets a value, and returns the number of keys.
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<Output = u64>;
    /// Streams the values of the keys with a prefix.
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = Result<impl Stream<Item = Result<Bytes, Status>>, Status>,
    >;
}
const _: () = ::trunkline::stub::require_version::<::trunkline::stub::StubVersion<1>>();
#[allow(dead_code)]
type __KvCodec = ::trunkline::codec::Bincode;
#[allow(dead_code, non_upper_case_globals)]
static __KvService: ::trunkline::stub::ServiceName = ::trunkline::stub::ServiceName {
    name: "golden.Kv",
    version: 2u32,
    oldest: 2u32,
    codec: <__KvCodec as ::trunkline::codec::Codec>::ID,
    codec_name: <__KvCodec as ::trunkline::codec::Codec>::NAME,
    hash: 2274913251127523067u64,
};
#[allow(dead_code, non_upper_case_globals)]
static __Kv_put: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
    service: &__KvService,
    name: "put",
    hash: 71320326203561452u64,
    one_way: false,
    idempotent: false,
    streams: ::trunkline::stub::Streams::Neither,
    shapes: ::core::option::Option::Some({
        static SHAPES: ::trunkline::stub::MethodShapes = ::trunkline::stub::MethodShapes::new(|
            __shapes|
        {
            __shapes
                .argument(
                    "key",
                    ::trunkline::stub::coded!(Coding, __KvCodec, String, shape()),
                );
            __shapes.result(::trunkline::stub::coded!(Coding, __KvCodec, u64, shape()));
        });
        &SHAPES
    }),
};
#[allow(dead_code, non_upper_case_globals)]
static __Kv_values: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
    service: &__KvService,
    name: "values",
    hash: 370123388033036288u64,
    one_way: false,
    idempotent: false,
    streams: ::trunkline::stub::Streams::FromServer,
    shapes: ::core::option::Option::Some({
        static SHAPES: ::trunkline::stub::MethodShapes = ::trunkline::stub::MethodShapes::new(|
            __shapes|
        {
            __shapes
                .argument(
                    "prefix",
                    ::trunkline::stub::coded!(Coding, __KvCodec, String, shape()),
                );
        });
        &SHAPES
    }),
};
#[allow(unused_imports)]
use ::trunkline::stub::{NoCoding as _, NotFailing as _, NotNamed as _};
#[doc(hidden)]
#[allow(dead_code)]
#[diagnostic::on_unimplemented(
    message = "`KvServer::per_poller` is not for this service: `put` is `#[blocking]`, so its handler is shared by pollers and workers",
    label = "use `new` or `shared`",
    note = "or move these methods to a service of their own"
)]
pub trait __KvPerPoller {}
/// A server of [`Kv`]. Pass it to `NodeBuilder::serve`.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug)]
pub struct KvServer(::trunkline::stub::Service);
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl KvServer {
    /// Creates a server whose handler is shared by all pollers of the node.
    #[must_use]
    pub fn new<__Handler: Kv + ::core::marker::Send + ::core::marker::Sync>(
        handler: __Handler,
    ) -> Self {
        Self::shared(::std::sync::Arc::new(handler))
    }
    /// Creates a server from a handler that is already in an `Arc`.
    #[must_use]
    pub fn shared<__Handler: Kv + ::core::marker::Send + ::core::marker::Sync>(
        handler: ::std::sync::Arc<__Handler>,
    ) -> Self {
        Self(
            ::trunkline::stub::Service::new(
                    &__KvService,
                    move |_, methods| {
                        Self::__register(
                            ::std::rc::Rc::new(::std::sync::Arc::clone(&handler)),
                            methods,
                        );
                        ::core::result::Result::Ok(())
                    },
                )
                .pooled(),
        )
    }
    /// Creates a server with one handler per poller. The handlers need not be `Send`.
    ///
    /// `make` runs once on the thread of each poller, with the context of that poller. If it fails or panics, the
    /// node does not start and the error names the cause. Services with `#[offload]` or `#[blocking]` methods
    /// cannot use this function.
    #[must_use]
    pub fn per_poller<__Handler: Kv + __KvPerPoller, __Failure>(
        make: impl ::core::ops::Fn(
            &::trunkline::PollerContext,
        ) -> ::core::result::Result<
                __Handler,
                __Failure,
            > + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self
    where
        __Failure: ::core::convert::Into<::trunkline::stub::Cause>,
    {
        Self(
            ::trunkline::stub::Service::new(
                &__KvService,
                move |_, _| {
                    let _ = make;
                    ::core::result::Result::Err(
                        ::core::convert::Into::into(
                            "methods of the service run in the worker pool",
                        ),
                    )
                },
            ),
        )
    }
    #[allow(clippy::redundant_allocation)]
    fn __register<__Handler: Kv + ::core::marker::Send + ::core::marker::Sync>(
        handler: ::std::rc::Rc<::std::sync::Arc<__Handler>>,
        methods: &mut ::trunkline::stub::Methods,
    ) {
        methods
            .add(
                &__Kv_put,
                {
                    let handler = ::std::rc::Rc::clone(&handler);
                    let pool = methods.pool();
                    move |__request: ::trunkline::stub::Request| {
                        let __handler = ::std::rc::Rc::clone(&handler);
                        let __pool = ::core::clone::Clone::clone(&pool);
                        async move {
                            let (key,) = __request
                                .arguments(
                                    &["key"],
                                    (
                                        ::trunkline::stub::coded!(
                                            Coding, __KvCodec, String, decoder()
                                        ),
                                    ),
                                )?;
                            let __replier = __request.replier();
                            let __context = __request.context();
                            let value = ::trunkline::stub::Named::<
                                Bytes,
                            >::value(__request.into_body());
                            let __value = {
                                let __handler = ::std::sync::Arc::clone(&*__handler);
                                let __given = ::core::clone::Clone::clone(&__context);
                                __pool
                                    .block(
                                        &__Kv_put,
                                        __given,
                                        move || async move {
                                            Kv::put(&*__handler, key, value).await
                                        },
                                    )
                                    .await
                                    .map_err(::trunkline::stub::Failure::Node)?
                            };
                            __replier
                                .value(
                                    &::trunkline::stub::coded!(
                                        Coding, __KvCodec, u64, of(& __value)
                                    ),
                                )
                        }
                    }
                },
            );
        methods
            .add(
                &__Kv_values,
                {
                    let handler = ::std::rc::Rc::clone(&handler);
                    move |__request: ::trunkline::stub::Request| {
                        let __handler = ::std::rc::Rc::clone(&handler);
                        async move {
                            let (prefix,) = __request
                                .arguments(
                                    &["prefix"],
                                    (
                                        ::trunkline::stub::coded!(
                                            Coding, __KvCodec, String, decoder()
                                        ),
                                    ),
                                )?;
                            let __replier = __request.replier();
                            let __writer = __request.writer();
                            let __value = Kv::values(&**__handler, prefix).await;
                            let __value: ::core::result::Result<_, Status> = __value;
                            let __value = __value
                                .map_err(::trunkline::stub::Named::<Status>::failure)?;
                            __writer
                                .send(
                                    __value,
                                    |
                                        __item: Bytes,
                                        __buffer: &mut ::trunkline::stub::ItemBuffer|
                                    {
                                        __buffer
                                            .bytes(::trunkline::stub::Named::<Bytes>::body(__item))
                                    },
                                )
                                .await?;
                            __replier.end()
                        }
                    }
                },
            );
        let _ = (handler, methods);
    }
    /// Limits how many calls of the service run concurrently, across all pollers of the node.
    ///
    /// A call beyond the limit is refused with `ResourceExhausted` and the reason `Overloaded`. It has not run
    /// and may be repeated after a pause, or on another server. If this limit is not set, the
    /// limits of the methods and the node's `handler_limit` still apply.
    ///
    /// A limit of 0 is refused when the node starts.
    #[must_use]
    pub fn limit(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit(most))
    }
    /// Passes each call of the service to `interceptor` before its arguments are decoded. Interceptors run in
    /// the order in which they are added.
    #[must_use]
    pub fn interceptor(self, interceptor: impl ::trunkline::ServerInterceptor) -> Self {
        Self(self.0.interceptor(interceptor))
    }
    /// Limits how many `put` calls run concurrently. See [`Self::limit`].
    #[must_use]
    pub fn limit_put(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit_method(&__Kv_put, most))
    }
    /// Limits how many `values` calls run concurrently. See [`Self::limit`].
    #[must_use]
    pub fn limit_values(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit_method(&__Kv_values, most))
    }
}
impl ::core::convert::From<KvServer> for ::trunkline::stub::Service {
    fn from(server: KvServer) -> Self {
        server.0
    }
}
/// A client of [`Kv`] for any thread and any executor. Cloning it is cheap.
///
/// Calling a method starts the call: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future resolves to the outcome, even if the call could not be made. It borrows the client but not the arguments. Dropping it cancels the call, whether or not it has been polled. The handler may have run by then.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone)]
pub struct KvClient {
    channel: ::trunkline::Channel,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl KvClient {
    /// Creates a client that calls through `channel`.
    #[must_use]
    pub fn new(channel: ::trunkline::Channel) -> Self {
        ::core::convert::From::from(channel)
    }
    /// Creates a client of `server`, which is for example `"10.0.0.1:7000"` or a `SocketAddr`. The first call
    /// connects.
    ///
    /// # Errors
    /// `InvalidArgument` if `server` cannot be the address of a server.
    pub fn connect(
        from: &::trunkline::Node,
        server: impl ::core::convert::Into<::trunkline::Target>,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        <::trunkline::Channel>::connect(from, server).map(::core::convert::From::from)
    }
    /// Sets the time limit of each call. The default is the deadline of the calling handler, or 10 s elsewhere.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// Returns a view of this client that makes each call with `options`, such as a time limit or metadata.
    /// Its futures borrow only the client.
    #[inline]
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> KvClientWith<'c, 'o> {
        KvClientWith {
            channel: &self.channel,
            options,
        }
    }
    /// Returns a client of the same server. Its calls start on the server in the order in which its methods
    /// were called.
    ///
    /// The order does not depend on the sizes of the calls or on when their futures are polled. Clones of the
    /// returned client share its order. Other calls are not ordered, including those of `self`.
    ///
    /// A call that fails, is refused or is cancelled is skipped. When the session with the server ends, calls
    /// that have not been sent fail with `Aborted`, in order, because the outcome of earlier calls is unknown.
    /// Later calls use the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// Sets a value, and returns the number of keys.
    #[inline]
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        self.with(&::trunkline::stub::DEFAULT_OPTIONS).put(key, value)
    }
    /// Streams the values of the keys with a prefix.
    #[inline]
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > + ::core::marker::Send + use<'_> {
        self.with(&::trunkline::stub::DEFAULT_OPTIONS).values(prefix)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ::core::convert::From<::trunkline::Channel> for KvClient {
    /// Creates a client that calls through `channel`.
    fn from(channel: ::trunkline::Channel) -> Self {
        ::trunkline::stub::trace(&[&__Kv_put, &__Kv_values]);
        Self { channel }
    }
}
/// A [`KvClient`] with other call options, from [`KvClient::with`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
pub struct KvClientWith<'c, 'o> {
    channel: &'c ::trunkline::Channel,
    options: &'o ::trunkline::CallOptions,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl<'c> KvClientWith<'c, '_> {
    /// Sets a value, and returns the number of keys.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        self.channel
            .call(
                self.options,
                &__Kv_put,
                &(::trunkline::stub::coded!(Coding, __KvCodec, String, of(& key)),),
                ::trunkline::stub::Named::<Bytes>::body(value),
            )
            .decoded(|__response| {
                __response
                    .value(::trunkline::stub::coded!(Coding, __KvCodec, u64, decoder()))
            })
    }
    /// Streams the values of the keys with a prefix.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn values(
        self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > + ::core::marker::Send + use<'c> {
        let (__call, __opened) = self
            .channel
            .open(
                self.options,
                &__Kv_values,
                &(::trunkline::stub::coded!(Coding, __KvCodec, String, of(& prefix)),),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::no_items(),
            );
        __call
            .decoded(move |__response| {
                let _ = __response.bytes()?;
                ::core::result::Result::Ok(
                    __opened.bytes(::trunkline::stub::Named::<Bytes>::value),
                )
            })
    }
}
/// A client of [`Kv`] for tasks on one poller. Its calls stay on that thread.
///
/// Calling a method starts the call: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future resolves to the outcome, even if the call could not be made. It borrows the client but not the arguments. Dropping it cancels the call, whether or not it has been polled. The handler may have run by then.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone)]
pub struct KvLocal {
    channel: ::trunkline::LocalChannel,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl KvLocal {
    /// Creates a client that calls through `channel`.
    #[must_use]
    pub fn new(channel: ::trunkline::LocalChannel) -> Self {
        ::core::convert::From::from(channel)
    }
    /// Creates a client of `server`, which is for example `"10.0.0.1:7000"` or a `SocketAddr`. The first call
    /// connects.
    ///
    /// # Errors
    /// `InvalidArgument` if `server` cannot be the address of a server.
    pub fn connect(
        from: &::trunkline::PollerContext,
        server: impl ::core::convert::Into<::trunkline::Target>,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        <::trunkline::LocalChannel>::connect(from, server)
            .map(::core::convert::From::from)
    }
    /// Sets the time limit of each call. The default is the deadline of the calling handler, or 10 s elsewhere.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// Returns a view of this client that makes each call with `options`, such as a time limit or metadata.
    /// Its futures borrow only the client.
    #[inline]
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> KvLocalWith<'c, 'o> {
        KvLocalWith {
            channel: &self.channel,
            options,
        }
    }
    /// Returns a client of the same server. Its calls start on the server in the order in which its methods
    /// were called.
    ///
    /// The order does not depend on the sizes of the calls or on when their futures are polled. Clones of the
    /// returned client share its order. Other calls are not ordered, including those of `self`.
    ///
    /// A call that fails, is refused or is cancelled is skipped. When the session with the server ends, calls
    /// that have not been sent fail with `Aborted`, in order, because the outcome of earlier calls is unknown.
    /// Later calls use the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// Sets a value, and returns the number of keys.
    #[inline]
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'_> {
        self.with(&::trunkline::stub::DEFAULT_OPTIONS).put(key, value)
    }
    /// Streams the values of the keys with a prefix.
    #[inline]
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > + use<'_> {
        self.with(&::trunkline::stub::DEFAULT_OPTIONS).values(prefix)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ::core::convert::From<::trunkline::LocalChannel> for KvLocal {
    /// Creates a client that calls through `channel`.
    fn from(channel: ::trunkline::LocalChannel) -> Self {
        ::trunkline::stub::trace(&[&__Kv_put, &__Kv_values]);
        Self { channel }
    }
}
/// A [`KvLocal`] with other call options, from [`KvLocal::with`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
pub struct KvLocalWith<'c, 'o> {
    channel: &'c ::trunkline::LocalChannel,
    options: &'o ::trunkline::CallOptions,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl<'c> KvLocalWith<'c, '_> {
    /// Sets a value, and returns the number of keys.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn put(
        self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'c> {
        self.channel
            .call(
                self.options,
                &__Kv_put,
                &(::trunkline::stub::coded!(Coding, __KvCodec, String, of(& key)),),
                ::trunkline::stub::Named::<Bytes>::body(value),
            )
            .decoded(|__response| {
                __response
                    .value(::trunkline::stub::coded!(Coding, __KvCodec, u64, decoder()))
            })
    }
    /// Streams the values of the keys with a prefix.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn values(
        self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > + use<'c> {
        let (__call, __opened) = self
            .channel
            .open(
                self.options,
                &__Kv_values,
                &(::trunkline::stub::coded!(Coding, __KvCodec, String, of(& prefix)),),
                ::trunkline::Bytes::new(),
                ::trunkline::stub::no_items(),
            );
        __call
            .decoded(move |__response| {
                let _ = __response.bytes()?;
                ::core::result::Result::Ok(
                    __opened.bytes(::trunkline::stub::Named::<Bytes>::value),
                )
            })
    }
}
/// Calls of [`Kv`] from any thread, implemented by [`KvClient`], and by what its `with` returns. Code that takes an `impl KvCalls` also accepts a mock.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
pub trait KvCalls {
    /// Sets a value, and returns the number of keys.
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send;
    /// Streams the values of the keys with a prefix.
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > + ::core::marker::Send;
}
/// Calls of [`Kv`] from one thread, whose futures need not be `Send`. Implemented by [`KvLocal`] and by every [`KvCalls`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
pub trait LocalKvCalls {
    /// Sets a value, and returns the number of keys.
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    >;
    /// Streams the values of the keys with a prefix.
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    >;
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl KvCalls for KvClient {
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::put(self, key, value)
    }
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > + ::core::marker::Send {
        Self::values(self, prefix)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl KvCalls for KvClientWith<'_, '_> {
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::put(*self, key, value)
    }
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > + ::core::marker::Send {
        Self::values(*self, prefix)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl LocalKvCalls for KvLocal {
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        Self::put(self, key, value)
    }
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > {
        Self::values(self, prefix)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl LocalKvCalls for KvLocalWith<'_, '_> {
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        Self::put(*self, key, value)
    }
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > {
        Self::values(*self, prefix)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl<__Caller: KvCalls> LocalKvCalls for __Caller {
    fn put(
        &self,
        key: String,
        value: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        <__Caller as KvCalls>::put(self, key, value)
    }
    fn values(
        &self,
        prefix: String,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<
            ::trunkline::Streaming<Bytes>,
            ::trunkline::Status,
        >,
    > {
        <__Caller as KvCalls>::values(self, prefix)
    }
}
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_CONTEXT,
    "argument `key` of `put` is a `trunkline::Context`; take it as `cx: &Context`, the first argument after `&self`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BORROWED,
    "argument `key` of `put` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<String>::IS_CONTEXT
        || ::trunkline::stub::Named::<String>::IS_BORROWED
        || ::trunkline::stub::coded!(Coding, __KvCodec, String, IS_POSSIBLE),
    "argument `key` of `put` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BYTES,
    "argument `key` of `put` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Bytes>::IS_BYTES,
    "argument `value` of `put`: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, for example by `use ... as Blob`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<u64>::IS_RESULT,
    "the result of `put` is a `Result` by another name, which the macro does not see; write `Result<T, E>`, or give the alias the name `Result`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<u64>::IS_RESULT
        || !::trunkline::stub::Named::<u64>::IS_BORROWED,
    "the result of `put` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<u64>::IS_RESULT
        || ::trunkline::stub::Named::<u64>::IS_BORROWED
        || ::trunkline::stub::coded!(Coding, __KvCodec, u64, IS_POSSIBLE),
    "the result of `put` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !(::trunkline::stub::Named::<u64>::IS_BYTES
        || ::trunkline::stub::Named::<u64>::IS_OPTIONAL_BYTES),
    "the result of `put` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_CONTEXT,
    "argument `prefix` of `values` is a `trunkline::Context`; take it as `cx: &Context`, the first argument after `&self`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BORROWED,
    "argument `prefix` of `values` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<String>::IS_CONTEXT
        || ::trunkline::stub::Named::<String>::IS_BORROWED
        || ::trunkline::stub::coded!(Coding, __KvCodec, String, IS_POSSIBLE),
    "argument `prefix` of `values` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BYTES,
    "argument `prefix` of `values` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Bytes>::IS_BYTES,
    "an item of the stream of `values`: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, for example by `use ... as Blob`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Status>::IS_STATUS,
    "the error of `values`: a type named `Status` is sent as one and must be `trunkline::Status`; rename your own type, for example by `use ... as Refusal`",
);
/// Passed through.
pub fn other() {}

use trunkline::{Bytes, Context, Status};
/// Images.
#[allow(dead_code)]
pub trait Images: 'static {
    /// A smaller image.
    fn thumbnail(
        &self,
        cx: &Context,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = Result<Bytes, Status>,
    > + ::core::marker::Send;
    /// Stores an image.
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<Output = Result<u64, Status>>;
}
#[allow(dead_code)]
type __ImagesCodec = ::trunkline::codec::Bincode;
#[allow(dead_code, non_upper_case_globals)]
static __ImagesService: ::trunkline::stub::ServiceName = ::trunkline::stub::ServiceName {
    name: "golden.Images",
    version: 1u32,
    oldest: 1u32,
    codec: <__ImagesCodec as ::trunkline::codec::Codec>::ID,
    codec_name: <__ImagesCodec as ::trunkline::codec::Codec>::NAME,
    hash: 3834022990662496608u64,
};
#[allow(dead_code, non_upper_case_globals)]
static __Images_thumbnail: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
    service: &__ImagesService,
    name: "thumbnail",
    hash: 10958008436114454223u64,
    one_way: false,
    idempotent: false,
    streams: ::trunkline::stub::Streams::Neither,
    shapes: ::core::option::Option::None,
};
#[allow(dead_code, non_upper_case_globals)]
static __Images_store: ::trunkline::stub::MethodName = ::trunkline::stub::MethodName {
    service: &__ImagesService,
    name: "store",
    hash: 2274808639245157077u64,
    one_way: false,
    idempotent: false,
    streams: ::trunkline::stub::Streams::Neither,
    shapes: ::core::option::Option::Some({
        static SHAPES: ::trunkline::stub::MethodShapes = ::trunkline::stub::MethodShapes::new(|
            __shapes|
        {
            __shapes
                .argument(
                    "name",
                    ::trunkline::stub::Coding::<
                        __ImagesCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::shape(),
                );
            __shapes
                .result(
                    ::trunkline::stub::Coding::<
                        __ImagesCodec,
                        u64,
                        { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                    >::shape(),
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
    message = "`ImagesServer::per_poller` is not for this service: `thumbnail` is `#[offload]`, `store` is `#[blocking]`, so its handler is shared by pollers and workers",
    label = "use `new` or `shared`",
    note = "or move these methods to a service of their own"
)]
pub trait __ImagesPerPoller {}
/// A server of [`Images`]. Pass it to `NodeBuilder::serve`.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug)]
pub struct ImagesServer(::trunkline::stub::Service);
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ImagesServer {
    /// Creates a server whose handler is shared by all pollers of the node.
    #[must_use]
    pub fn new<__Handler: Images + ::core::marker::Send + ::core::marker::Sync>(
        handler: __Handler,
    ) -> Self {
        Self::shared(::std::sync::Arc::new(handler))
    }
    /// Creates a server from a handler that is already in an `Arc`.
    #[must_use]
    pub fn shared<__Handler: Images + ::core::marker::Send + ::core::marker::Sync>(
        handler: ::std::sync::Arc<__Handler>,
    ) -> Self {
        Self(
            ::trunkline::stub::Service::new(
                    &__ImagesService,
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
    /// `make` runs once on the thread of each poller, with the context of that poller. If it fails or panics, the node
    /// does not start and the error names the cause. Services with `#[offload]` or `#[blocking]` methods cannot use it.
    #[must_use]
    pub fn per_poller<__Handler: Images + __ImagesPerPoller, __Failure>(
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
                &__ImagesService,
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
    fn __register<__Handler: Images + ::core::marker::Send + ::core::marker::Sync>(
        handler: ::std::rc::Rc<::std::sync::Arc<__Handler>>,
        methods: &mut ::trunkline::stub::Methods,
    ) {
        methods
            .add(
                &__Images_thumbnail,
                {
                    let handler = ::std::rc::Rc::clone(&handler);
                    let pool = methods.pool();
                    move |__request: ::trunkline::stub::Request| {
                        let __handler = ::std::rc::Rc::clone(&handler);
                        let __pool = ::core::clone::Clone::clone(&pool);
                        async move {
                            let () = __request.arguments(&[], ())?;
                            let __replier = __request.replier();
                            let __context = ::trunkline::stub::Named::<
                                Context,
                            >::context(__request.context());
                            let image = ::trunkline::stub::Named::<
                                Bytes,
                            >::value(__request.into_body());
                            let __value = {
                                let __handler = ::std::sync::Arc::clone(&*__handler);
                                let __given = ::core::clone::Clone::clone(&__context);
                                __pool
                                    .offload(
                                        &__Images_thumbnail,
                                        __given,
                                        async move {
                                            Images::thumbnail(&*__handler, &__context, image).await
                                        },
                                    )
                                    .await
                                    .map_err(::trunkline::stub::Failure::Node)?
                            };
                            let __value: ::core::result::Result<Bytes, Status> = ::trunkline::stub::Named::<
                                Result<Bytes, Status>,
                            >::result(__value);
                            let __value = __value
                                .map_err(::trunkline::stub::Named::<Status>::failure)?;
                            __replier
                                .bytes(::trunkline::stub::Named::<Bytes>::body(__value))
                        }
                    }
                },
            );
        methods
            .add(
                &__Images_store,
                {
                    let handler = ::std::rc::Rc::clone(&handler);
                    let pool = methods.pool();
                    move |__request: ::trunkline::stub::Request| {
                        let __handler = ::std::rc::Rc::clone(&handler);
                        let __pool = ::core::clone::Clone::clone(&pool);
                        async move {
                            let (name,) = __request
                                .arguments(
                                    &["name"],
                                    (
                                        ::trunkline::stub::Coding::<
                                            __ImagesCodec,
                                            String,
                                            { ::trunkline::stub::Named::<String>::IS_BORROWED },
                                        >::decoder(),
                                    ),
                                )?;
                            let __replier = __request.replier();
                            let __context = __request.context();
                            let image = ::trunkline::stub::Named::<
                                Bytes,
                            >::value(__request.into_body());
                            let __value = {
                                let __handler = ::std::sync::Arc::clone(&*__handler);
                                let __given = ::core::clone::Clone::clone(&__context);
                                __pool
                                    .block(
                                        &__Images_store,
                                        __given,
                                        move || async move {
                                            Images::store(&*__handler, name, image).await
                                        },
                                    )
                                    .await
                                    .map_err(::trunkline::stub::Failure::Node)?
                            };
                            let __value: ::core::result::Result<u64, Status> = ::trunkline::stub::Named::<
                                Result<u64, Status>,
                            >::result(__value);
                            let __value = __value
                                .map_err(::trunkline::stub::Named::<Status>::failure)?;
                            __replier
                                .value(
                                    &::trunkline::stub::Coding::<
                                        __ImagesCodec,
                                        u64,
                                        { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                                    >::of(&__value),
                                )
                        }
                    }
                },
            );
        let _ = (handler, methods);
    }
    /// Limits how many calls of the service run concurrently, across all pollers of the node.
    ///
    /// A call beyond the limit is refused with `ResourceExhausted` and the reason `Overloaded`. It has not run and may
    /// be repeated after a pause, or at another server. Without this limit, only `handler_limit` applies.
    ///
    /// A limit of 0 is refused when the node starts.
    #[must_use]
    pub fn limit(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit(most))
    }
    /// Passes each call of the service through `interceptor` before its arguments are decoded, behind the
    /// interceptors that were added before.
    #[must_use]
    pub fn interceptor(self, interceptor: impl ::trunkline::ServerInterceptor) -> Self {
        Self(self.0.interceptor(interceptor))
    }
    /// Limits how many `thumbnail` calls run concurrently. See [`Self::limit`].
    #[must_use]
    pub fn limit_thumbnail(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit_method(&__Images_thumbnail, most))
    }
    /// Limits how many `store` calls run concurrently. See [`Self::limit`].
    #[must_use]
    pub fn limit_store(self, most: ::core::primitive::u32) -> Self {
        Self(self.0.limit_method(&__Images_store, most))
    }
}
impl ::core::convert::From<ImagesServer> for ::trunkline::stub::Service {
    fn from(server: ImagesServer) -> Self {
        server.0
    }
}
/// A client of [`Images`] for any thread and any executor. Cloning it is cheap.
///
/// Calling a method starts the call: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future resolves to the outcome, even if the call could not be made. It borrows the client but not the arguments. Dropping it cancels the call, whether or not it has been polled. The handler may have run by then.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone)]
pub struct ImagesClient {
    channel: ::trunkline::Channel,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ImagesClient {
    /// Creates a client that calls through `channel`.
    #[must_use]
    pub fn new(channel: ::trunkline::Channel) -> Self {
        ::trunkline::stub::trace(&[&__Images_thumbnail, &__Images_store]);
        Self { channel }
    }
    /// Creates a client of the node that listens at `server`. The first call connects.
    ///
    /// A host name is resolved once, by this function, which may block. To resolve it again before each connection,
    /// create the client from a channel.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::Node,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::trunkline::stub::trace(&[&__Images_thumbnail, &__Images_store]);
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::Channel>::connect(from, server)?,
        })
    }
    /// Sets the time limit of each call. The default is the deadline of the calling handler, or 10 s elsewhere.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// Returns the client's methods with `options` for each call: its time limit, its metadata and others. Their
    /// futures borrow only the client.
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> ImagesClientWith<'c, 'o> {
        ImagesClientWith {
            channel: &self.channel,
            options,
        }
    }
    /// Returns a client of the same server whose calls start there in the order in which its methods were called.
    ///
    /// The order holds whatever the sizes of the calls and whenever their futures are polled. Clones of the returned
    /// client share its order. Other calls are not ordered, including those of `self`.
    ///
    /// A call that fails, is refused or is cancelled is skipped, and the next ones start. When the session with the
    /// server ends, calls that have not been sent fail with `Aborted`, in order, because the outcome of earlier calls
    /// is unknown. Later calls use the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// A smaller image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        self.channel
            .call(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Images_thumbnail,
                &(),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response.bytes().map(::trunkline::stub::Named::<Bytes>::value)
            })
    }
    /// Stores an image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'_> {
        self.channel
            .call(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Images_store,
                &(
                    ::trunkline::stub::Coding::<
                        __ImagesCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __ImagesCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )
            })
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ::core::convert::From<::trunkline::Channel> for ImagesClient {
    /// Creates a client that calls through `channel`.
    fn from(channel: ::trunkline::Channel) -> Self {
        ::trunkline::stub::trace(&[&__Images_thumbnail, &__Images_store]);
        Self { channel }
    }
}
/// A [`ImagesClient`] with other call options, from [`ImagesClient::with`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
pub struct ImagesClientWith<'c, 'o> {
    channel: &'c ::trunkline::Channel,
    options: &'o ::trunkline::CallOptions,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl<'c> ImagesClientWith<'c, '_> {
    /// A smaller image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn thumbnail(
        self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        self.channel
            .call(
                self.options,
                &__Images_thumbnail,
                &(),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response.bytes().map(::trunkline::stub::Named::<Bytes>::value)
            })
    }
    /// Stores an image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn store(
        self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send + use<'c> {
        self.channel
            .call(
                self.options,
                &__Images_store,
                &(
                    ::trunkline::stub::Coding::<
                        __ImagesCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __ImagesCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )
            })
    }
}
/// A client of [`Images`] for tasks on one poller. Its calls stay on that thread.
///
/// Calling a method starts the call: the arguments are encoded and handed to a poller before the method returns, and the time limit counts from then. The future resolves to the outcome, even if the call could not be made. It borrows the client but not the arguments. Dropping it cancels the call, whether or not it has been polled. The handler may have run by then.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone)]
pub struct ImagesLocal {
    channel: ::trunkline::LocalChannel,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ImagesLocal {
    /// Creates a client that calls through `channel`.
    #[must_use]
    pub fn new(channel: ::trunkline::LocalChannel) -> Self {
        ::trunkline::stub::trace(&[&__Images_thumbnail, &__Images_store]);
        Self { channel }
    }
    /// Creates a client of the node that listens at `server`. The first call connects.
    ///
    /// A host name is resolved once, by this function, which may block. To resolve it again before each connection,
    /// create the client from a channel.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(
        from: &::trunkline::PollerContext,
        server: impl ::std::net::ToSocketAddrs,
    ) -> ::core::result::Result<Self, ::trunkline::Status> {
        ::trunkline::stub::trace(&[&__Images_thumbnail, &__Images_store]);
        ::core::result::Result::Ok(Self {
            channel: <::trunkline::LocalChannel>::connect(from, server)?,
        })
    }
    /// Sets the time limit of each call. The default is the deadline of the calling handler, or 10 s elsewhere.
    #[must_use]
    pub fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
        self.channel.set_timeout(timeout);
        self
    }
    /// Returns the client's methods with `options` for each call: its time limit, its metadata and others. Their
    /// futures borrow only the client.
    #[must_use]
    pub fn with<'c, 'o>(
        &'c self,
        options: &'o ::trunkline::CallOptions,
    ) -> ImagesLocalWith<'c, 'o> {
        ImagesLocalWith {
            channel: &self.channel,
            options,
        }
    }
    /// Returns a client of the same server whose calls start there in the order in which its methods were called.
    ///
    /// The order holds whatever the sizes of the calls and whenever their futures are polled. Clones of the returned
    /// client share its order. Other calls are not ordered, including those of `self`.
    ///
    /// A call that fails, is refused or is cancelled is skipped, and the next ones start. When the session with the
    /// server ends, calls that have not been sent fail with `Aborted`, in order, because the outcome of earlier calls
    /// is unknown. Later calls use the next session.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self {
            channel: self.channel.ordered(),
        }
    }
    /// A smaller image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > + use<'_> {
        self.channel
            .call(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Images_thumbnail,
                &(),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response.bytes().map(::trunkline::stub::Named::<Bytes>::value)
            })
    }
    /// Stores an image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'_> {
        self.channel
            .call(
                &::trunkline::stub::DEFAULT_OPTIONS,
                &__Images_store,
                &(
                    ::trunkline::stub::Coding::<
                        __ImagesCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __ImagesCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )
            })
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl ::core::convert::From<::trunkline::LocalChannel> for ImagesLocal {
    /// Creates a client that calls through `channel`.
    fn from(channel: ::trunkline::LocalChannel) -> Self {
        ::trunkline::stub::trace(&[&__Images_thumbnail, &__Images_store]);
        Self { channel }
    }
}
/// A [`ImagesLocal`] with other call options, from [`ImagesLocal::with`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
pub struct ImagesLocalWith<'c, 'o> {
    channel: &'c ::trunkline::LocalChannel,
    options: &'o ::trunkline::CallOptions,
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
impl<'c> ImagesLocalWith<'c, '_> {
    /// A smaller image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn thumbnail(
        self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > + use<'c> {
        self.channel
            .call(
                self.options,
                &__Images_thumbnail,
                &(),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response.bytes().map(::trunkline::stub::Named::<Bytes>::value)
            })
    }
    /// Stores an image.
    #[must_use = "the call is made, but dropping its future cancels it"]
    pub fn store(
        self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + use<'c> {
        self.channel
            .call(
                self.options,
                &__Images_store,
                &(
                    ::trunkline::stub::Coding::<
                        __ImagesCodec,
                        String,
                        { ::trunkline::stub::Named::<String>::IS_BORROWED },
                    >::of(&name),
                ),
                ::trunkline::stub::Named::<Bytes>::body(image),
            )
            .decoded(|__response| {
                __response
                    .value(
                        ::trunkline::stub::Coding::<
                            __ImagesCodec,
                            u64,
                            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
                        >::decoder(),
                    )
            })
    }
}
/// Calls of [`Images`] from any thread, implemented by [`ImagesClient`], and by what its `with` returns. Code that takes an `impl ImagesCalls` also accepts a mock.
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
pub trait ImagesCalls {
    /// A smaller image.
    fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > + ::core::marker::Send;
    /// Stores an image.
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send;
}
/// Calls of [`Images`] from one thread, whose futures need not be `Send`. Implemented by [`ImagesLocal`] and by every [`ImagesCalls`].
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
pub trait LocalImagesCalls {
    /// A smaller image.
    fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    >;
    /// Stores an image.
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    >;
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl ImagesCalls for ImagesClient {
    fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::thumbnail(self, image)
    }
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::store(self, name, image)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl ImagesCalls for ImagesClientWith<'_, '_> {
    fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::thumbnail(*self, image)
    }
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > + ::core::marker::Send {
        Self::store(*self, name, image)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl LocalImagesCalls for ImagesLocal {
    fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > {
        Self::thumbnail(self, image)
    }
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        Self::store(self, name, image)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl LocalImagesCalls for ImagesLocalWith<'_, '_> {
    fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > {
        Self::thumbnail(*self, image)
    }
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        Self::store(*self, name, image)
    }
}
#[allow(dead_code, deprecated, clippy::let_unit_value)]
#[allow(trivial_bounds)]
impl<__Caller: ImagesCalls> LocalImagesCalls for __Caller {
    fn thumbnail(
        &self,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<Bytes, ::trunkline::Status>,
    > {
        <__Caller as ImagesCalls>::thumbnail(self, image)
    }
    fn store(
        &self,
        name: String,
        image: Bytes,
    ) -> impl ::core::future::Future<
        Output = ::core::result::Result<u64, ::trunkline::Status>,
    > {
        <__Caller as ImagesCalls>::store(self, name, image)
    }
}
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Bytes>::IS_BYTES,
    "argument `image` of `thumbnail`: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, for example by `use ... as Blob`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Bytes>::IS_BYTES,
    "the result of `thumbnail`: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, for example by `use ... as Blob`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Context>::IS_CONTEXT,
    "the context of `thumbnail` must be `&trunkline::Context`; all other arguments are sent, and must own their data",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Status>::IS_STATUS,
    "the error of `thumbnail`: a type named `Status` is sent as one and must be `trunkline::Status`; rename your own type, for example by `use ... as Refusal`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Result<Bytes, Status>>::IS_RESULT,
    "the result of `thumbnail`: a type named `Result` must be the standard library's; rename your own type, for example by `use ... as OwnResult`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_CONTEXT,
    "argument `name` of `store` is a `trunkline::Context`; take it as `cx: &Context`, the first argument after `&self`",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BORROWED,
    "argument `name` of `store` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<String>::IS_CONTEXT
        || ::trunkline::stub::Named::<String>::IS_BORROWED
        || ::trunkline::stub::Coding::<
            __ImagesCodec,
            String,
            { ::trunkline::stub::Named::<String>::IS_BORROWED },
        >::IS_POSSIBLE,
    "argument `name` of `store` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !::trunkline::stub::Named::<String>::IS_BYTES,
    "argument `name` of `store` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Bytes>::IS_BYTES,
    "argument `image` of `store`: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, for example by `use ... as Blob`",
);
const _: () = ::trunkline::stub::require(
    !false,
    "the result of `store` is a `Result` by another name, which the macro does not see; write `Result<T, E>`, or give the alias the name `Result`",
);
const _: () = ::trunkline::stub::require(
    false || !::trunkline::stub::Named::<u64>::IS_BORROWED,
    "the result of `store` cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` or `Vec<T>`",
);
const _: () = ::trunkline::stub::require(
    false || ::trunkline::stub::Named::<u64>::IS_BORROWED
        || ::trunkline::stub::Coding::<
            __ImagesCodec,
            u64,
            { ::trunkline::stub::Named::<u64>::IS_BORROWED },
        >::IS_POSSIBLE,
    "the result of `store` cannot be sent: the service's codec does not accept its type; if the type is your own, add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields",
);
const _: () = ::trunkline::stub::require(
    !(::trunkline::stub::Named::<u64>::IS_BYTES
        || ::trunkline::stub::Named::<u64>::IS_OPTIONAL_BYTES),
    "the result of `store` is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Status>::IS_STATUS,
    "the error of `store`: a type named `Status` is sent as one and must be `trunkline::Status`; rename your own type, for example by `use ... as Refusal`",
);
const _: () = ::trunkline::stub::require(
    ::trunkline::stub::Named::<Result<u64, Status>>::IS_RESULT,
    "the result of `store`: a type named `Result` must be the standard library's; rename your own type, for example by `use ... as OwnResult`",
);

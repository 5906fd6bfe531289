/**
 * Nothing that runs here reports to anybody. onnxruntime (1.29 and newer, also off Windows) uploads events and keeps a
 * device id and a cache on disk unless this variable is set before the library is loaded. Imported first by the command
 * lines and by the one module that imports onnxruntime; whoever wants it sets the variable to 0. See docs/adr/0004.
 *
 * The native library reads the process's real environment: a worker thread must share it (`env: SHARE_ENV`), or the main
 * thread must have imported this.
 */
process.env['ORT_DISABLE_TELEMETRY'] ??= '1';

/** The S3 client's word about old versions of Node is for whoever updates this project, not for whoever runs it. */
process.env['AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED'] ??= 'true';

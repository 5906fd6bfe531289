#!/usr/bin/env node
/** pipeline: says from the tracer of a pipeline where its time goes. */
import { run } from './cli.ts';

process.exitCode = await run();

#!/usr/bin/env node
/** serving: answers predictions over HTTP. */
import { run } from './cli.ts';

process.exitCode = await run();

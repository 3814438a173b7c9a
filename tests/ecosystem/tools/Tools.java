import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM: starting one for each costs more than what they do.
 *
 * <p>A line of JSON tells the class, its arguments, what it reads and for how many seconds it may run; a line of JSON
 * tells the code it exited with (null: it did not end) and what it printed.
 */
public final class Tools {
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** Scala's console keeps the stream that it finds first, so there is one for good, which goes where it is told. */
    private static final class Switched extends OutputStream {
        private ByteArrayOutputStream to = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int one) {
            to.write(one);
        }

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) {
            to.write(bytes, offset, length);
        }

        synchronized String taken() {
            String text = to.toString(StandardCharsets.UTF_8);
            to = new ByteArrayOutputStream();
            return text;
        }
    }

    private static final int NONE = Integer.MIN_VALUE;
    private static final long HOOK_MS = 20_000;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        Switched out = new Switched();
        Switched err = new Switched();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = json.readTree(line);
            Integer code = run(json, command);
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("code", code);
            result.put("out", out.taken());
            result.put("err", err.taken());
            answers.println(json.writeValueAsString(Map.of("result", result)));
        }
    }

    private static Integer run(ObjectMapper json, JsonNode command) throws Exception {
        String[] arguments = json.treeToValue(command.get("arguments"), String[].class);
        System.setIn(new ByteArrayInputStream(command.path("input").asText("").getBytes(StandardCharsets.UTF_8)));
        AtomicInteger code = new AtomicInteger(NONE);
        Exit.Procedure exit = (status, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            code.compareAndSet(NONE, status);
            throw new Ended();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        List<Runnable> hooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Thread thread = new Thread(() -> {
            try {
                Class.forName(command.get("class").asText())
                        .getMethod("main", String[].class)
                        .invoke(null, (Object) arguments);
                code.compareAndSet(NONE, 0);
            } catch (java.lang.reflect.InvocationTargetException error) {
                if (!(error.getCause() instanceof Ended)) {
                    error.getCause().printStackTrace();
                    code.compareAndSet(NONE, 1);
                }
            } catch (ReflectiveOperationException error) {
                error.printStackTrace();
                code.compareAndSet(NONE, 127);
            }
        });
        thread.setDaemon(true);
        thread.start();
        thread.join(command.path("seconds").asLong(60) * 1000);
        if (thread.isAlive()) {
            thread.interrupt();
            return null;
        }
        // The end of the process, which stops producers and consumers.
        hooks.forEach(Runnable::run);
        for (Thread hook : taken()) {
            hook.start();
            hook.join(HOOK_MS);
        }
        return code.get();
    }

    /** What is to run at the end of this process, which it is not any more. */
    @SuppressWarnings("unchecked")
    private static List<Thread> taken() throws ReflectiveOperationException {
        var field = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        field.setAccessible(true);
        Map<Thread, Thread> all = (Map<Thread, Thread>) field.get(null);
        List<Thread> taken = new ArrayList<>(all.keySet());
        all.clear();
        return taken;
    }
}

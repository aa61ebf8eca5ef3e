import java.io.FileInputStream;
import java.io.InputStream;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;

/**
 * Connect once with each settings file of the arguments, and print the class and message of the exception.
 *
 * <p>After a successful login, the admin client requests metadata. A share coordinator does not support this request,
 * so an UnsupportedVersionException means that the login succeeded.
 */
public final class Login {
    private Login() {
    }

    public static void main(String[] files) throws Exception {
        for (String file : files) {
            Properties settings = new Properties();
            try (InputStream stream = new FileInputStream(file)) {
                settings.load(stream);
            }
            settings.putIfAbsent("default.api.timeout.ms", "40000");
            settings.putIfAbsent("request.timeout.ms", "20000");
            Throwable outcome = null;
            try (Admin admin = Admin.create(settings)) {
                admin.describeCluster().nodes().get();
            } catch (ExecutionException failure) {
                outcome = failure.getCause();
            } catch (Exception failure) {
                outcome = failure;
            }
            String text = outcome == null ? "null" : outcome.getClass().getSimpleName() + ": " + outcome.getMessage();
            System.out.println(text.replace('\n', ' '));
        }
    }
}
